// The services of fvlm/cache.h: what plugins keep between runs, in the files of plugin/answer_files.h.
#pragma once
#include <fvlm/cache.h>

#include <string>

namespace fvlm {

// Who asks: the plugin's name, and what tells its file from others. An empty identity: nothing is kept.
struct CachingPlugin {
  std::string name, identity;
};

// A file that is invalid or cannot be written causes one warning and is ignored. [any thread]
bool load_cached(const CachingPlugin& plugin, fvlm_device device, const std::string& key, void* value, uint64_t size);
void store_cached(const CachingPlugin& plugin, fvlm_device device, const std::string& key, const void* value,
                  uint64_t size);

} // namespace fvlm
