#include "model/weights/model_file.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/json.h"
#include "base/path_hint.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>

namespace fvlm {
namespace {

using Json = nlohmann::json;

constexpr uint64_t largest_file = uint64_t{64} << 20;
constexpr const char* algorithm = "xxh64";

std::optional<uint64_t> parse_checksum(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  bool good = text.size() == 16 && error == std::errc() && end == text.data() + text.size();
  return good ? std::optional(number) : std::nullopt;
}

void read_checksums(ModelFile& out, const Json& given, const std::string& where, Problems& problems) {
  out.checksums.emplace();
  ConfigReader reader(given, where);
  reader.refuse_unknown(std::array{"algorithm", "tensors"});
  std::string named = reader.text("algorithm", std::nullopt);
  reader.refuse_unless(named == algorithm, "algorithm", "checksums are xxh64");
  const Json* tensors = reader.object("tensors");
  if (!tensors) return problems.add("checksums: 'tensors' is missing");
  for (const auto& [name, value] : tensors->items()) {
    auto checksum = parse_checksum(value);
    if (!checksum) problems.add("the checksum of {} must be text of 16 hexadecimal digits", shown(name));
    out.checksums->emplace(name, checksum.value_or(0));
  }
  for (const std::string& problem : reader.problems().list()) problems.add("checksums: {}", problem);
}

} // namespace

ModelFile ModelFile::read(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / name;
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    const std::string hint = hint_on_model(folder);
    throw Error(ErrorKind::data, "there is no such folder")
        .at(folder.string())
        .advise(hint.empty() ? "name a model directory, a checkpoint or the folder of a run" : hint);
  }
  if (!std::filesystem::exists(path, ignored))
    throw Error(ErrorKind::data, "this is no model directory: there is no fvlm.json in it")
        .at(folder.string())
        .advise("`fvlm-engine import --vision DIR --decoder DIR --out DIR` makes one from two Hugging Face folders");
  Json json = read_json_object(path, largest_file);
  ConfigReader reader(json, path.string());
  int64_t version = reader.whole("format_version", std::nullopt, 1);
  reader.finish("this fvlm.json was not written by fvlm-engine");
  if (version != format_version)
    throw Error(ErrorKind::data,
                fmt::format("format version {} is not known to this engine, which reads {}", version, format_version))
        .at(path.string())
        .advise("it was written by a newer fvlm-engine: use that one");

  reader.refuse_unknown(std::array{"format_version", "model", "connector", "stage", "step", "plan_hash", "checksums"});
  ModelFile out;
  out.model = reader.text("model", folder.filename().string());
  if (reader.has("stage")) out.stage = reader.text("stage", std::nullopt);
  if (reader.has("plan_hash")) out.plan_hash = reader.text("plan_hash", std::nullopt);
  out.step = reader.whole("step", 0, 0, INT64_MAX);
  const Json* connector = reader.object("connector");
  if (!connector) reader.problems().add("'connector' is missing");
  if (const Json* checksums = reader.object("checksums"))
    read_checksums(out, *checksums, path.string(), reader.problems());
  reader.finish("this fvlm.json was changed or damaged: fetch or import the model anew");
  out.connector = read_connector_config(*connector, path.string());
  return out;
}

std::string ModelFile::text() const {
  nlohmann::ordered_json out;
  out["format_version"] = format_version;
  out["model"] = model;
  out["connector"] = config_json(connector);
  out["stage"] = stage.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(stage);
  out["step"] = step;
  out["plan_hash"] = plan_hash.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(plan_hash);
  if (checksums) {
    Json tensors = Json::object();
    for (const auto& [tensor, checksum] : *checksums) tensors[tensor] = fmt::format("{:016x}", checksum);
    out["checksums"] = {{"algorithm", algorithm}, {"tensors", tensors}};
  }
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"; // a folder's name may be no UTF-8
}

} // namespace fvlm
