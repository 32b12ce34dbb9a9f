// Prepares the globals of code: `console`, and one object for each service. Receives the functions as pairs of object
// and name, and the two functions of the host. Returns the object with which the host runs the code.
//
// Keeps references to everything that is needed later, because code may change any built-in object.
(function (functions, call, print) {
  "use strict";
  const { stringify } = JSON;
  const { apply } = Reflect;
  const { then } = Promise.prototype;
  const { toWellFormed } = String.prototype;
  const { defineProperty, freeze } = Object;
  const AnyPromise = Promise, AnyError = Error, AnyMap = Map, AnySet = Set, from = Array.from, text = String;
  const AsyncFunction = (async () => {}).constructor;
  const pending = { __proto__: null };

  // `Atomics.wait` blocks the thread, and there is no other thread that could wake it.
  delete globalThis.Atomics;
  delete globalThis.SharedArrayBuffer;

  const plain = (_, value) => (value instanceof AnyMap || value instanceof AnySet ? from(value) : value);

  // Only well-formed text can leave the engine: an unpaired surrogate is replaced.
  const whole = (value) => apply(toWellFormed, value, []);

  const shown = (value) => {
    try {
      if (typeof value === "string") return value;
      if (typeof value === "bigint") return `${value}n`;
      if (typeof value === "function") return `[function ${value.name}]`;
      if (value instanceof AnyError) return text(value);
      return (typeof value === "object" ? stringify(value, plain) : undefined) ?? text(value);
    } catch {
      try {
        return text(value);
      } catch {
        return "[something that cannot be shown]";
      }
    }
  };

  const console = { __proto__: null };
  for (const level of ["log", "info", "warn", "error", "debug"]) {
    console[level] = (...values) => {
      let line = "";
      for (let at = 0; at < values.length; at++) line += (at ? " " : "") + shown(values[at]);
      // The engine asks the host whether to stop only after some thousand steps of the code. Empty steps take no time,
      // and the stop cannot be caught.
      if (!print(whole(line))) for (;;);
    };
  }
  const visible = { __proto__: null, console };

  functions.forEach(([object, name], index) => {
    const called = `${object}.${name}`;
    const tool = async (given = {}) => {
      if (typeof given !== "object" || given === null || Array.isArray(given)) {
        throw new TypeError(`${called} takes one object with its arguments: ${called}({...})`);
      }
      const number = call(index, stringify(given));
      // Without `await`, the engine would look up `then` on the promise, which code may have changed.
      return await new AnyPromise((resolve, reject) => (pending[number] = { resolve, reject, called }));
    };
    visible[object] ??= { __proto__: null };
    visible[object][name] = defineProperty(tool, "name", { value: called });
  });
  for (const name in visible) {
    defineProperty(globalThis, name, { value: freeze(visible[name]), enumerable: true });
  }

  return {
    // Returns the promise of the code's result. Marks it as handled, because the host checks it.
    start: (code) => {
      const promise = AsyncFunction(code)();
      apply(then, promise, [undefined, () => {}]);
      return promise;
    },
    settle: (number, failure, refused, value) => {
      const { resolve, reject, called } = pending[number] ?? {};
      delete pending[number];
      // No promise is pending: the call was not made through a function above.
      if (called === undefined) return;
      if (failure === undefined) return resolve(value);
      const error = new AnyError(failure);
      defineProperty(error, "tool", { value: called });
      defineProperty(error, "refused", { value: refused });
      reject(error);
    },
    // Returns text as text, other values as JSON, and `undefined` for `undefined`.
    written: (value) => {
      if (value === undefined) return value;
      if (typeof value === "string") return whole(value);
      const json = stringify(value, plain);
      if (json === undefined) throw new TypeError(`it is a ${typeof value}`);
      return json;
    },
    // Returns a description of the thrown value, with the tool that threw it, and its stack.
    thrown: (value) => {
      const about = value === null ? "null, as the engine does when no memory is left" : shown(value);
      if (!(value instanceof AnyError)) return [whole(`the code threw ${about}`), ""];
      const said = typeof value.tool === "string" ? `${value.tool}: ${about}` : about;
      return [whole(said), whole(text(value.stack ?? ""))];
    },
  };
})
