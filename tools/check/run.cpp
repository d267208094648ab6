#include "check/variation.h"

#include <fvlm/abi.h>

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::check {

bool Run::done() const {
  return std::ranges::all_of(statuses, [](const Status& s) { return s.value == FVLM_OK; });
}

std::string Run::failure() const {
  for (const auto& [kind, text] : violations)
    if (kind == Violation::threw) return text;
  for (const Status& status : statuses)
    if (status.value != FVLM_OK)
      return fmt::format("{} returned {} ({}){}{}", status.call, status.value, status_name(status.value),
                         status.error.empty() ? "" : ": ", status.error);
  return "";
}

const at::Tensor* Run::output(std::string_view name) const {
  // The last of a name: an alias is taken after all calls.
  for (auto entry = outputs.rbegin(); entry != outputs.rend(); ++entry)
    if (entry->first == name) return &entry->second;
  return nullptr;
}

std::optional<std::string> Run::violation(Violation kind) const {
  for (const auto& [what, text] : violations)
    if (what == kind) return text;
  return std::nullopt;
}

const char* status_name(int32_t status) {
  constexpr const char* names[] = {"ok",     "argument", "unsupported", "workspace",
                                   "device", "memory",   "internal",    "data"};
  return status >= 0 && status < static_cast<int32_t>(std::size(names)) ? names[status] : "no status of the ABI";
}

} // namespace fvlm::check
