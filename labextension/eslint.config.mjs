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
  {
    rules: {
      // All of it together is smaller than an icon font.
      'jupyter/prefer-lazy-imports': 'off',
      // What ranks print comes from other machines: it goes in as text, never as markup.
      'no-restricted-properties': [
        'error',
        ...['innerHTML', 'outerHTML', 'insertAdjacentHTML', 'setHTMLUnsafe', 'srcdoc'].map(property => ({
          property,
          message: 'Use setText or element of dom.ts.'
        }))
      ]
    }
  }
];
