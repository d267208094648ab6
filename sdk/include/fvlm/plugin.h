/* fvlm/plugin.h: the one symbol that a plugin exports, and what it returns. */
#ifndef FVLM_PLUGIN_H
#define FVLM_PLUGIN_H

#include <fvlm/host.h>
#include <fvlm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fvlm_plugin {
  uint32_t struct_size;
  uint32_t abi_major, abi_minor; /* FVLM_ABI_MAJOR, FVLM_ABI_MINOR of the headers it was compiled with */
  const char* name;              /* as in plugin.toml */
  const char* version;

  /* The table of a kind, the same pointer each time; NULL where the plugin has none. A kind is
   * "fvlm.FAMILY/REVISION". Where one plugin may have several tables of a family, each is a kind of its own, with its
   * variant (an optimizer's algorithm, a quantizer's scheme) behind a colon: "fvlm.attention/1",
   * "fvlm.optimizer/1:adamw", "fvlm.quantizer/1:int8"; "fvlm.optimizer/1" alone is not a kind. plugin.toml lists the
   * same strings. [any thread] */
  const void* (*table)(const char* kind);
} fvlm_plugin;

/* Returns the same pointer each time; NULL where the plugin cannot work with this host (host->abi_major differs). The
 * pointer and all it leads to stay valid until the process ends. [setup] */
#define FVLM_PLUGIN_ENTRY "fvlm_plugin_entry_v1"
FVLM_EXPORT const fvlm_plugin* fvlm_plugin_entry_v1(const fvlm_host* host);
typedef const fvlm_plugin* (*fvlm_plugin_entry_function)(const fvlm_host* host);

#ifdef __cplusplus
}
#endif
#endif
