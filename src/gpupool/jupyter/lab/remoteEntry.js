// The JupyterLab extension: shows the messages of gpupool.jupyter.browser as notifications.
// It is a container of module federation, as JupyterLab loads it, written by hand: there is no build.
// JupyterLab's restart button does nothing for a dead kernel, so the message of its end has a button of its own.

"use strict";

(() => {
  const SCHEMA = "https://gpupool/kernel-messages/v1";
  let shared; // JupyterLab's own packages: name -> version -> {get}

  async function load(name) {
    const [version] = Object.values(shared[name]);
    return (await version.get())();
  }

  // Return the button that starts the kernel of an open notebook again, on a new slice.
  function restartButtons(tracker, kernel) {
    const panel = tracker?.find((each) => each.sessionContext.session?.kernel?.id === kernel);
    if (!panel) {
      return [];
    }
    const name = panel.sessionContext.session.kernel.name;
    return [{ label: "Restart kernel", displayType: "accent", callback: () => panel.sessionContext.changeKernel({ name }) }];
  }

  async function activate(app, tracker) {
    const { Notification } = await load("@jupyterlab/apputils");
    const shown = new Map(); // kernel -> notification

    function dismiss(kernel) {
      if (shown.has(kernel)) {
        Notification.dismiss(shown.get(kernel));
        shown.delete(kernel);
      }
    }

    app.serviceManager.events.stream.connect((_, event) => {
      if (event.schema_id !== SCHEMA) {
        return;
      }
      const { kernel_id: kernel, notebook, phase, text } = event;
      const message = notebook ? `${notebook}: ${text}` : text;
      if (phase === "waiting" && shown.has(kernel)) {
        Notification.update({ id: shown.get(kernel), message, type: "in-progress", autoClose: false });
        return;
      }
      dismiss(kernel);
      if (phase === "waiting") {
        shown.set(kernel, Notification.emit(message, "in-progress", { autoClose: false }));
      } else if (phase === "dead") {
        const actions = restartButtons(tracker, kernel);
        shown.set(kernel, Notification.warning(message, { autoClose: false, actions }));
      }
    });
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB.gpupool = {
    init: (scope) => {
      shared = scope;
    },
    get: async () => {
      const { INotebookTracker } = await load("@jupyterlab/notebook");
      const plugin = { id: "gpupool:kernel-messages", autoStart: true, optional: [INotebookTracker], activate };
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
