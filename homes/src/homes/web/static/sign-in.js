// Makes typing easier; the form works without it.
"use strict";

const panel = document.querySelector(".gate-panel");
const operator = document.getElementById("operator");
const home = document.getElementById("home");
const code = document.getElementById("code");
const password = document.getElementById("password");

if (panel.dataset.role === "operator" || location.hash === "#operator") {
  operator.open = true;
  password.focus();
} else if (home.value) {
  code.focus();
} else {
  home.focus();
}

operator.addEventListener("toggle", () => operator.open && password.focus());

code.addEventListener("input", () => {
  const end = code.selectionStart === code.value.length;
  const plain = code.value.toUpperCase().replace(/[^A-Z2-7]/g, "").slice(0, 12);
  if (end) code.value = plain.replace(/(.{4})(?=.)/g, "$1-");
});
