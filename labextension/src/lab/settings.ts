/* The user's settings; `schema/clusters.json` says what each is for. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';

export interface Values {
  refresh: number;
  confirmLoss: boolean;
  confirmAbove: number;
  nodes: number;
  provider: string;
  gpu: string;
  statusBar: boolean;
}

/* The defaults, for a page without settings. */
const DEFAULTS: Values = {
  refresh: 1.5,
  confirmLoss: true,
  confirmAbove: 0,
  nodes: 2,
  provider: '',
  gpu: '',
  statusBar: true
};

export class Settings {
  readonly changed = new Signal<this, void>(this);
  #values: Values = DEFAULTS;

  get values(): Values {
    return this.#values;
  }

  async load(registry: ISettingRegistry, plugin: string): Promise<void> {
    const settings = await registry.load(plugin);
    const update = () => {
      this.#values = { ...DEFAULTS, ...(settings.composite as Partial<Values>) };
      this.changed.emit();
    };
    settings.changed.connect(update);
    update();
  }
}
