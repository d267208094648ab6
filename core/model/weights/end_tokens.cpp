#include "model/weights/end_tokens.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>

namespace fvlm {

std::vector<int64_t> end_tokens(const std::filesystem::path& decoder, const std::vector<int64_t>& of_config) {
  constexpr uint64_t max_bytes = uint64_t{1} << 20;
  const auto file = decoder / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return of_config;
  const nlohmann::json config = read_json_object(file, max_bytes);
  const auto ids = config.find("eos_token_id");
  if (ids == config.end() || ids->is_null()) return of_config;
  std::vector<int64_t> ends;
  for (const nlohmann::json& id : ids->is_array() ? *ids : nlohmann::json::array({*ids})) {
    if (!id.is_number_integer())
      throw Error(ErrorKind::data, "eos_token_id is {}, not a token id or a list of them", ids->dump())
          .at(file.string());
    ends.push_back(id.get<int64_t>());
  }
  return ends;
}

} // namespace fvlm
