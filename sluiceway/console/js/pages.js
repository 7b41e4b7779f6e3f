// All pages: what the address calls them, what the bar at the side calls them, and who makes them.

import { config } from "./views/config.js";
import { connections } from "./views/connections.js";
import { consumers } from "./views/consumers.js";
import { deadLetters } from "./views/dead_letters.js";
import { destination } from "./views/destination.js";
import { destinations } from "./views/destinations.js";
import { hubs } from "./views/hubs.js";
import { log } from "./views/log.js";
import { logs } from "./views/logs.js";
import { map } from "./views/map.js";
import { messages } from "./views/messages.js";
import { overview } from "./views/overview.js";
import { store } from "./views/store.js";
import { trail } from "./views/trail.js";

/** `admin`: about the whole broker, for who may `admin` it; `several`: there if the broker has several hubs; `under`: whose entry is lit for a page that has none. */
export const PAGES = {
  overview: { label: "Overview", icon: "overview", admin: true, make: overview },
  map: { label: "Flow map", icon: "map", admin: true, make: map },
  hubs: { label: "Hubs", icon: "hubs", admin: true, several: true, make: hubs },
  destinations: { label: "Destinations", icon: "destinations", make: destinations },
  destination: { under: "destinations", make: destination },
  messages: { under: "destinations", make: messages },
  consumers: { label: "Consumers", icon: "consumers", admin: true, make: consumers },
  connections: { label: "Connections", icon: "connections", admin: true, make: connections },
  "dead-letters": { label: "Dead letters", icon: "deadletters", make: deadLetters },
  logs: { label: "Logs", icon: "logs", admin: true, make: logs },
  log: { under: "logs", make: log },
  store: { label: "Store", icon: "store", admin: true, make: store },
  trail: { label: "Find a message", icon: "trail", admin: true, make: trail },
  config: { label: "Configuration", icon: "config", admin: true, make: config },
};
