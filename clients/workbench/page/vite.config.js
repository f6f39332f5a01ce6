// Names without hashes: the built page stands in git, and its diff should show what has changed.
export default {
  base: "/",
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: "../aeenc_workbench/page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "assets/workbench.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/workbench[extname]",
      },
    },
  },
};
