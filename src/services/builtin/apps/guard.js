function guard() {
  document.currentScript.remove();
  // No content policy holds the first two. The others make elements of text that Trusted Types never see.
  const out = ["RTCPeerConnection", "webkitRTCPeerConnection", "XSLTProcessor", "XMLHttpRequest"];
  for (const name of out) delete window[name];
  // A frame within the page would have them all again. A script gets into one only through the attribute `srcdoc`, whose
  // name cannot be written otherwise except by an entity of XML. What judges is taken now: the page may replace it.
  const { apply } = Reflect;
  const { includes, toLowerCase } = String.prototype;
  const holds = (text, word) => apply(includes, apply(toLowerCase, text, []), [word]);
  const whole = (sink) => sink === "Element innerHTML" || sink === "Element outerHTML" || sink === "ShadowRoot innerHTML"
    || sink === "Element insertAdjacentHTML" || sink === "Element setHTMLUnsafe" || sink === "ShadowRoot setHTMLUnsafe"
    || sink === "Range createContextualFragment" || sink === "DOMParser parseFromString" || sink === "Document parseHTMLUnsafe";
  window.trustedTypes?.createPolicy("default", {
    createHTML: (html, _, sink) => whole(sink) && !holds(html, "srcdoc") && !holds(html, "<!entity") ? html : null,
    createScript: (code) => code,
  });
}
