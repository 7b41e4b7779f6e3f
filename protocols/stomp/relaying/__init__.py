"""Client's side of proxy sessions: what a client does with destinations that are at home at other hubs.

For each client and each hub that owns destinations of this client there is one flow (`far`), which ends in an ordinary
session there. Where there is a cluster, `Relay.take` is in place of `Session.take_here`: each event goes to this hub or
over a flow, as bytes. What comes back is appended to the output of the client as it lies; RECEIPTs and ERRORs are
looked at.

    relay           what each event and each flow is for: the parts below, put together
    near            what the parts use of the client's session at this hub
    routes          homes of destinations, and hubs with subscribers of topics; pure knowledge, remembered
    flows           the open flows of one client
    far, inward     one flow; a large MESSAGE that comes over it
    kept            SENDs that may have to be sent again
    sends           SENDs, and those that wait for a home
    large_sends     bodies that go on in pieces
    copying, copies copies of SENDs to topics, for the subscribers of other hubs; those over one flow
    transactions    transactions, each at one hub
    subscriptions   subscriptions at one or more hubs, and those that wait for a home
    acks            ACK and NACK, by the delivery that they name
    answers         RECEIPTs and ERRORs that come back, and receipts of the relay's own
    behind          requests to the broker, behind what the client sent before
    underway        bytes on their way, and whether the client is read
    refusals        ERRORs that several parts make

Permissions. The hub of the client checks its login and its rates. Whether it may use a destination is asked where the
destination lives, since only there is known whether it would have to be made.

Lost flows. SENDs stay here until the other hub has done them: those without a receipt until it says so, others until
their RECEIPT is back. When a flow is lost they are sent again, marked with `possible-duplicate:true` where they may
have arrived, and subscriptions are made again; if the destination has no home now, both wait, and reading stops when
SENDs take more than the stash may. ACKs of deliveries of a lost flow are forgotten, for those messages come again,
marked. One with a receipt ends the connection with an ERROR, for the RECEIPT would lie; so do a transaction and a large
body that were under way.

Topics (`Topics`). A SUBSCRIBE that is not durable stays at this hub. A SEND to a topic goes to this hub if that has
subscribers, to the home of the topic if it may have durable subscriptions, where it is kept and sent again as above,
and as a copy to each other hub with subscribers.

Bounds: SENDs and other bytes under way are charged to an account of `stash_bytes_max`; what comes back to the output of
the client.
"""
