/* All tests in one process: to load a document takes longer than most files. */

import { readdirSync } from 'node:fs';
import { describe } from 'node:test';

for (const file of readdirSync(import.meta.dirname).sort()) {
  if (file.endsWith('.test.ts')) {
    // What a file does before each test is for its own.
    describe(file, () => import(`./${file}`));
  }
}
