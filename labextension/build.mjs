/* Builds what the notebook's panel loads: one ES module and its style. */

import { fileURLToPath } from 'node:url';
import { rspack } from '@rspack/core';

const here = fileURLToPath(new URL('.', import.meta.url));

const compiler = rspack({
  mode: 'production',
  context: here,
  entry: { panel: './src/panel.ts' },
  target: 'es2022',
  devtool: false,
  module: {
    rules: [
      {
        test: /\.ts$/,
        loader: 'builtin:swc-loader',
        options: { jsc: { parser: { syntax: 'typescript' }, target: 'es2022' } }
      }
    ]
  },
  output: {
    path: `${here}../jupyter_sky/notebook/static`,
    filename: '[name].js',
    module: true,
    library: { type: 'module' },
    clean: true
  },
  plugins: [new rspack.CopyRspackPlugin({ patterns: [{ from: 'style/view.css', to: 'panel.css' }] })]
});

compiler.run((error, stats) => {
  const report = error ?? stats.toString({ preset: 'errors-warnings', assets: true });
  console.log(String(report));
  process.exitCode = error || stats.hasErrors() ? 1 : 0;
  compiler.close(() => {});
});
