#include "model/weights/generation_config.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

// An empty object where there is no such file.
nlohmann::json config_in(const std::filesystem::path& file) {
  constexpr uint64_t max_bytes = uint64_t{1} << 20;
  std::error_code ignored;
  return std::filesystem::exists(file, ignored) ? read_json_object(file, max_bytes) : nlohmann::json::object();
}

} // namespace

std::vector<int64_t> end_tokens(const std::filesystem::path& decoder, const std::vector<int64_t>& of_config) {
  const auto file = decoder / "generation_config.json";
  const nlohmann::json config = config_in(file);
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

RecommendedSampling recommended_sampling(const std::filesystem::path& decoder) {
  const auto file = decoder / "generation_config.json";
  const nlohmann::json config = config_in(file);
  ConfigReader reader(config, file.string());
  const auto number = [&](const char* key, double least, double most) {
    return reader.has(key) ? std::optional(reader.number(key, std::nullopt, least, most)) : std::nullopt;
  };
  RecommendedSampling out;
  out.repetition_penalty = number("repetition_penalty", 0.01, 100);
  if (reader.has("do_sample") && reader.flag("do_sample", false)) {
    out.temperature = number("temperature", 0, 100);
    out.top_p = number("top_p", 1e-9, 1);
    out.min_p = number("min_p", 0, 1);
    if (reader.has("top_k")) out.top_k = reader.whole("top_k", std::nullopt, 0, INT32_MAX);
  }
  reader.finish("correct the file, or copy that of the published model");
  return out;
}

} // namespace fvlm
