// What the linter asks of the page's modules. Names and types are for tsc to check: see tsconfig.json.

import js from "@eslint/js";

export default [
  { ignores: [".venv/", "node_modules/"] },
  {
    files: ["src/**/web/**/*.js"],
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...js.configs.recommended.rules,
      "no-undef": "off", // tsc does that
      "no-empty": ["error", { allowEmptyCatch: false }],
      "no-unused-vars": ["error", { args: "all", argsIgnorePattern: "^_$" }],
      "array-callback-return": "error",
      "consistent-return": "error",
      "eqeqeq": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-implicit-globals": "error",
      "no-new-func": "error",
      "no-restricted-properties": ["error",
        { object: "Math", property: "random", message: "Protocol randomness comes from crypto.getRandomValues." },
        ...["innerHTML", "outerHTML", "insertAdjacentHTML"].map((property) => ({ property, message: "Text of others is shown as text." })),
      ],
      "no-self-compare": "error",
      "no-throw-literal": "error",
      "no-unmodified-loop-condition": "error",
      "no-unreachable-loop": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-promise-reject-errors": "error",
      "require-await": "error",
      "sort-imports": ["error", { ignoreCase: true, ignoreDeclarationSort: true }],
    },
  },
];
