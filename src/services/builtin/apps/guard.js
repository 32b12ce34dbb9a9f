function guard() {
  document.currentScript.remove();
  // No content policy holds these connections.
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"]) delete window[name];
  // A frame within the page would have them again, so no markup of one gets into the page.
  window.trustedTypes?.createPolicy("default", {
    createHTML: (html, _, sink) => /<[^\s<>]*iframe/i.test(html) || /srcdoc|write/.test(sink) ? null : html,
    createScript: (code) => code,
  });
}
