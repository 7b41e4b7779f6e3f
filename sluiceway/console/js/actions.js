// Everything that changes something, each with its question. What can't be undone wants a name typed in.

import { act, ask, explained } from "./api.js";
import { confirm, tell } from "./dialogs.js";
import * as format from "./format.js";

const said = (answer) => answer?.words ?? "Done.";

/** Do without a question; errors are told. */
async function plainly(context, name, body) {
  try {
    tell(said(await act(name, body)));
  } catch (error) {
    tell(explained(error));
  }
  context.soon();
}

const asked = (context, name, body) => async (values) => {
  const answer = await act(name, typeof body === "function" ? body(values) : body);
  context.soon();
  return said(answer);
};

export function pause(context, name) {
  return plainly(context, "pause", { name });
}

export function resume(context, name) {
  return plainly(context, "resume", { name });
}

const LIMITS = [
  ["count_max", "Messages", "Empty: no limit"],
  ["bytes_max", "Bytes, in memory and on disk", "Such as 2 GiB. Empty: no limit"],
  ["memory_bytes", "Bytes in memory", "Such as 128 MiB"],
  ["lead_bytes", "Bytes ahead of the fastest subscriber", "Such as 16 MiB"],
];

/** Change the limits of a queue or a topic until the broker restarts. Only what was edited is sent. */
export async function limit(context, name) {
  let found = null;
  try {
    found = await ask("/destination", { name });
  } catch (error) {
    tell(explained(error));
    return;
  }
  const changed = found.changed_limits;
  const texts = Object.fromEntries(LIMITS.map(([key]) => [key, format.limit(key, found.policy[key])]));
  const shown = LIMITS.filter(([key]) => key !== "lead_bytes" || found.kind === "topic");
  const isChanged = Object.keys(changed).length > 0;
  confirm({
    title: `Limits of ${name}`,
    words: `In force at once, until the broker restarts or a reload changes the same limit. Senders that wait continue where there is room; nothing that is in it is lost. It holds ${format.things(found.depth_count, "message")}, ${format.size(found.depth_bytes)}.`,
    label: "Change the limits",
    fields: [
      isChanged && { name: "which", label: "Limits", value: "these", options: [["these", "these"], ["configured", "those of the configuration"]] },
      ...shown.map(([key, label, hint]) => ({
        name: key,
        label,
        value: texts[key],
        hint: key in changed ? `${hint}. Changed at run time; configured: ${format.limit(key, changed[key].configured) || "no limit"}` : hint,
        when: ({ which }) => which !== "configured",
      })),
    ].filter(Boolean),
    go: async (values) => {
      const edited = shown.map(([key]) => key).filter((key) => values[key].trim() !== texts[key]);
      if (values.which !== "configured" && edited.length === 0) throw new Error("no limit was edited");
      const limits = Object.fromEntries(edited.map((key) => [key, values[key].trim() || null]));
      return asked(context, "limit", { name, confirm: name, ...(values.which === "configured" ? { configured: true } : { limits }) })(values);
    },
  });
}

export function purge(context, name, count) {
  confirm({
    title: `Purge ${name}`,
    words: `All messages that wait in it${count === null ? "" : ` (${format.count(count)} now)`} are dropped permanently. Messages held by consumers stay with them.`,
    label: "Purge",
    danger: true,
    typed: name,
    go: asked(context, "purge", { name, confirm: name }),
  });
}

/** Drop single messages. */
export function drop(context, name, ids) {
  confirm({
    title: ids.length === 1 ? "Delete a message" : `Delete ${format.things(ids.length, "message")}`,
    words: `${format.things(ids.length, "message")} of ${name} ${ids.length === 1 ? "is" : "are"} dropped permanently. A message that a consumer holds stays.`,
    label: "Delete",
    danger: true,
    go: asked(context, "purge", { name, message_ids: ids, confirm: name }),
  });
}

/** Put a message into a queue or a topic. */
export function publish(context, name) {
  confirm({
    title: `Publish to ${name}`,
    words: "The message is in the destination as if a client had sent it.",
    label: "Publish",
    fields: [
      { name: "body", label: "Body", type: "textarea", value: "" },
      { name: "type", label: "Content type", value: "text/plain;charset=utf-8" },
      { name: "priority", label: "Priority", value: "4", options: [...Array(10).keys()].map((priority) => [String(priority), String(priority)]) },
      { name: "kept", label: "Durability", value: "no", options: [["no", "in memory"], ["yes", "persistent"]] },
      { name: "headers", label: "More headers", type: "textarea", value: "", hint: "One per line: name:value" },
    ],
    go: asked(context, "publish", ({ body, type, priority, kept, headers }) => ({
      to: name,
      body,
      headers: { ...headersOf(headers), priority, ...(type ? { "content-type": type } : {}), ...(kept === "yes" ? { persistent: "true" } : {}) },
    })),
  });
}

function headersOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  const without = lines.find((line) => line.indexOf(":") < 1);
  if (without !== undefined) throw new Error(`«${without.trim().slice(0, 60)}» is no header: write name:value`);
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]));
}

export function retry(context, name, ids, count) {
  confirm({
    title: "Send back to where they came from",
    words: `${format.things(ids ? ids.length : count, "dead letter")} of ${name} ${ids?.length === 1 ? "goes" : "go"} back to the destinations they were sent to, and may be refused again.`,
    label: "Retry",
    fields: [
      {
        name: "topics",
        label: "What a subscriber of a topic refused",
        value: "stay",
        options: [["stay", "stays here"], ["republish", "goes to all subscribers of the topic again"]],
      },
    ],
    go: asked(context, "retry", ({ topics }) => ({ name, ...(ids ? { message_ids: ids } : { all: true }), republish: topics === "republish", confirm: name })),
  });
}

export function move(context, from, ids, count) {
  confirm({
    title: "Move",
    words: `${format.things(ids ? ids.length : count, "message")} of ${from} ${ids?.length === 1 ? "is" : "are"} taken out and put into another destination.`,
    label: "Move",
    fields: [{ name: "to", label: "To which destination", value: "", hint: "For example /queue/orders" }],
    go: asked(context, "move", ({ to }) => ({ from, to, ...(ids ? { message_ids: ids } : { all: true }), confirm: from })),
  });
}

export function closeConnection(context, connection) {
  confirm({
    title: `Close ${connection.client_id ? `${connection.client_id} (${connection.peer})` : connection.peer}`,
    words: `The connection ends with an ERROR frame. ${connection.unsettled_count ? `Its ${format.things(connection.unsettled_count, "unacknowledged message")} ${connection.unsettled_count === 1 ? "goes" : "go"} to other consumers.` : "It holds no unacknowledged messages."}`,
    label: "Close it",
    danger: true,
    go: asked(context, "close-connection", { session: connection.session, confirm: connection.session }),
  });
}

export function removeDurable(context, durable) {
  confirm({
    title: `Remove ${durable.name}`,
    words: `The durable subscription${durable.client_id ? ` of ${durable.client_id}` : ""} ends. ${durable.backlog_count ? `${format.things(durable.backlog_count, "message")} of ${durable.destination} ${durable.backlog_count === 1 ? "waits" : "wait"} for it; messages that only it needs are dropped.` : "Nothing waits for it."}`,
    label: "Remove it",
    danger: true,
    go: asked(context, "remove-durable", { client_id: durable.client_id, name: durable.name, destination: durable.destination, confirm: durable.name }),
  });
}

export function seek(context, log, group) {
  confirm({
    title: `Move group ${group.group}`,
    words: `It continues to read ${log.log} from another offset. Records in between are read again, or skipped.`,
    label: "Move the group",
    fields: [
      {
        name: "where",
        label: "To",
        value: "latest",
        options: [["earliest", "the first record there is"], ["latest", "the end: only new records"], ["index", "an index"], ["time", "a time"]],
      },
      { name: "index", label: "Index", type: "number", value: String(log.first ?? 0), when: (values) => values.where === "index" },
      { name: "time", label: "Time", type: "datetime-local", value: "", when: (values) => values.where === "time" },
    ],
    go: asked(context, "seek-group", (values) => ({ log: log.log, group: group.group, to: placeOf(values), confirm: group.group })),
  });
}

function placeOf({ where, index, time }) {
  if (where === "index") return String(index);
  if (where === "time") return `time:${new Date(time).getTime()}`;
  return where;
}

/** Drain the broker, or one of its hubs. */
export function drain(context, broker, hub = null) {
  confirm({
    title: `Drain ${hub ?? broker}`,
    words: "New connections are refused, and connections that only send are closed. Consumers finish, for a minute at most; then the broker stops. This can't be undone.",
    label: "Drain",
    danger: true,
    typed: broker,
    go: asked(context, "drain", hub ? { confirm: broker, hub } : { confirm: broker }),
  });
}

export function reload(context) {
  confirm({
    title: "Read the configuration again",
    words: "What can change while the broker runs is in force at once; what can't is named. A file with mistakes changes nothing.",
    label: "Reload",
    go: asked(context, "reload", {}),
  });
}
