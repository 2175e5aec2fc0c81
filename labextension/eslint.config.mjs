/* What Jupyter asks of its extensions: commands that say what they take, texts that can be translated,
   signals that are let go. */

import jupyter from '@jupyter/eslint-plugin';
import typescript from 'typescript-eslint';

export default [
  {
    files: ['src/**/*.ts'],
    plugins: { jupyter },
    languageOptions: {
      parser: typescript.parser,
      parserOptions: { projectService: true }
    }
  },
  ...jupyter.configs.recommended,
  // All of it together is smaller than an icon font.
  { rules: { 'jupyter/prefer-lazy-imports': 'off' } }
];
