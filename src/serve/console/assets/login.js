// Exchanges the one-time code in the address for a cookie. The code leaves the address before anything else happens.
const code = location.hash.slice(1);
if (code) {
  history.replaceState(null, "", location.pathname + location.search);
  const problem = document.getElementById("login-problem");
  const show = (text) => { problem.textContent = text; problem.hidden = false; };
  fetch("/console/login/code", { method: "POST", body: new URLSearchParams({ code }) })
    .then(async (answer) => {
      if (answer.ok) location.replace(document.querySelector("input[name=next]").value);
      else show(await answer.text());
    })
    .catch(() => show("The server does not answer. Is `skein console` still running?"));
}
