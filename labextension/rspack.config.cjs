/* What `jupyter-builder build` adds to its own rules for the sidebar: TypeScript as it is written, and
   what tells JupyterLab how it was installed. */

const { CopyRspackPlugin } = require('@rspack/core');

module.exports = {
  module: {
    rules: [
      {
        test: /\.ts$/,
        loader: 'builtin:swc-loader',
        options: { jsc: { parser: { syntax: 'typescript' }, target: 'es2022' } }
      }
    ]
  },
  plugins: [
    new CopyRspackPlugin({ patterns: [{ from: `${__dirname}/install.json`, to: '../install.json' }] })
  ]
};
