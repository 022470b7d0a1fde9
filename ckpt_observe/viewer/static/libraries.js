// Library health: what is observed, what is not, and the next step.

import { element, table } from "./dom.js";
import { ago } from "./format.js";

export async function librariesPage(load) {
  const data = await load("libraries");
  return {
    node: element("div", {},
      element("h1", {}, "Libraries"),
      data.unobserved.length > 0 && element("section", {}, element("h2", {}, "Programs that recorded nothing"),
        element("ul", {}, data.unobserved.map((program) => element("li", {}, element("strong", {}, program.service), ` ${ago(program.ended_unix_nano)}: ${program.reasons.join("; ")}`)))),
      element("section", {}, table("Libraries that can be observed", ["Library", "State", "Next step"], data.libraries.map((library) => [
        library.title,
        library.operations ? `${library.operations} of the newest operations` : library.is_default ? "on" : "off",
        library.operations || library.is_default ? "" : element("code", {}, `CKPT_OBSERVE_LIBRARIES=default,+${library.name}`),
      ]))),
      element("p", {}, "Your own checkpoint code is recorded with ", element("code", {}, "ckpt_observe.checkpoint()"),
        ". ", element("code", {}, "ckpt-observe doctor"), " checks this machine.")),
  };
}
