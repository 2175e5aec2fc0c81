/* What `jupyter-builder build` adds to its own rules for the sidebar: TypeScript as it is written. */

module.exports = {
  module: {
    rules: [
      {
        test: /\.ts$/,
        loader: 'builtin:swc-loader',
        options: { jsc: { parser: { syntax: 'typescript' }, target: 'es2022' } }
      }
    ]
  }
};
