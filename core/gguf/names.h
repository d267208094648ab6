// Names of modules, ours and llama.cpp's.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fvlm::gguf {

struct Name {
  const char *ours, *theirs;
};

inline std::optional<std::string> theirs_of(std::string_view ours, std::span<const Name> names) {
  const auto found = std::ranges::find_if(names, [&](const Name& name) { return ours == name.ours; });
  return found == names.end() ? std::nullopt : std::optional<std::string>(found->theirs);
}

// "blk.3.attn_q" of "model.layers.3.self_attn.q_proj", where `names` has what is behind the number.
inline std::optional<std::string> layer_name(const std::string& module, const std::string& prefix,
                                             const std::string& their_prefix, std::span<const Name> names) {
  const size_t dot = module.find('.', prefix.size());
  if (!module.starts_with(prefix) || dot == std::string::npos) return std::nullopt;
  const auto found = theirs_of(std::string_view(module).substr(dot + 1), names);
  return found ? std::optional(their_prefix + module.substr(prefix.size(), dot + 1 - prefix.size()) + *found)
               : std::nullopt;
}

} // namespace fvlm::gguf
