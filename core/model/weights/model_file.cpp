#include "model/weights/model_file.h"

#include "base/config_reader.h"
#include "base/error.h"
#include "base/json.h"
#include "base/path_hint.h"
#include "base/shell_word.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>

namespace fvlm {
namespace {

using Json = nlohmann::json;

constexpr uint64_t largest_file = uint64_t{64} << 20;
constexpr const char* algorithm = "xxh64";
constexpr Role roles[] = {Role::encoder, Role::connector, Role::decoder};

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

// A part's name stands before a dot in the names of tensors.
bool is_part_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// Whether a path stays within the directory that it is relative to.
bool is_inside(const std::filesystem::path& path) {
  return !path.empty() && path.is_relative() && std::find(path.begin(), path.end(), "..") == path.end();
}

std::optional<Role> role_of(const std::string& word) {
  for (const Role role : roles)
    if (word == name_of(role)) return role;
  return std::nullopt;
}

ModelFile::Part::Base read_base(const Json& json, ConfigReader& part) {
  ConfigReader reader(json, part.where());
  reader.refuse_unknown(std::array{"folder", "checksum"});
  ModelFile::Part::Base base{.folder = reader.text("folder", std::nullopt)};
  const auto checksum = json.contains("checksum") ? parse_checksum(json["checksum"]) : std::nullopt;
  if (!checksum) reader.problems().add("the checksum must be text of 16 hexadecimal digits");
  base.checksum = checksum.value_or(0);
  for (const std::string& problem : reader.problems().list()) part.problems().add("base: {}", problem);
  return base;
}

ModelFile::Part read_part(ConfigReader& reader) {
  ModelFile::Part part;
  part.name = reader.text("name", std::nullopt);
  reader.refuse_unless(!reader.has("name") || is_part_name(part.name), "name",
                       "a name consists of letters, digits, '_' and '-'");
  const auto role = role_of(reader.text("role", std::nullopt));
  reader.refuse_unless(!reader.has("role") || role, "role", "the roles are encoder, connector and decoder");
  if (!role) return part;
  part.role = *role;
  const bool is_connector = part.role == Role::connector;
  const char* key = is_connector ? "file" : "folder";
  part.location = reader.text(key, std::nullopt);
  reader.refuse_unless(!reader.has(key) || is_inside(part.location), key, "it has to lie inside the model directory");
  if (!is_connector) {
    reader.refuse_unknown(std::array{"name", "role", "folder", "model_type", "base"});
    part.model_type = reader.text("model_type", "");
    if (const Json* base = reader.object("base")) part.base = read_base(*base, reader);
    return part;
  }
  reader.refuse_unknown(std::array{"name", "role", "file", "encoder", "decoder", "config"});
  part.encoder = reader.text("encoder", "");
  part.decoder = reader.text("decoder", "");
  if (const Json* config = reader.object("config"))
    part.connector = read_connector_config(*config, reader.where());
  else
    reader.problems().add("'config' is missing");
  return part;
}

void read_parts(ModelFile& out, const Json& json, const std::string& where, Problems& problems) {
  const auto list = json.find("parts");
  if (list == json.end() || !list->is_array()) return problems.add("'parts' is missing or no list");
  for (size_t i = 0; i < list->size(); ++i) {
    if (!(*list)[i].is_object()) {
      problems.add("parts[{}] is no object", i);
      continue;
    }
    ConfigReader reader((*list)[i], where);
    ModelFile::Part part = read_part(reader);
    for (const std::string& problem : reader.problems().list()) problems.add("parts[{}]: {}", i, problem);
    for (const ModelFile::Part& other : out.parts)
      if (other.name == part.name) problems.add("parts[{}]: there are two parts named {}", i, shown(part.name));
    out.parts.push_back(std::move(part));
  }
}

// The parts of format 1, in which only the connector has something to say.
std::vector<ModelFile::Part> parts_of_format_1(const Json& connector, const std::string& where) {
  return {{.name = "vision", .role = Role::encoder, .location = "vision"},
          {.name = "connector",
           .role = Role::connector,
           .location = "connector.safetensors",
           .connector = read_connector_config(connector, where)},
          {.name = "decoder", .role = Role::decoder, .location = "decoder"}};
}

nlohmann::ordered_json part_json(const ModelFile::Part& part) {
  nlohmann::ordered_json out = {{"name", part.name}, {"role", name_of(part.role)}};
  if (part.role != Role::connector) {
    out["folder"] = part.location;
    out["model_type"] = part.model_type;
    if (part.base)
      out["base"] = {{"folder", part.base->folder}, {"checksum", fmt::format("{:016x}", part.base->checksum)}};
    return out;
  }
  out["file"] = part.location;
  if (!part.encoder.empty()) out["encoder"] = part.encoder;
  if (!part.decoder.empty()) out["decoder"] = part.decoder;
  out["config"] = config_json(part.connector);
  return out;
}

} // namespace

const char* name_of(Role role) {
  constexpr const char* names[] = {"encoder", "connector", "decoder"};
  return names[static_cast<size_t>(role)];
}

ModelFile ModelFile::read(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / name;
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    std::string hint = hint_on_model_directory(folder);
    if (hint.empty()) hint = "name a model directory, a checkpoint or the folder of a run";
    throw Error(ErrorKind::data, "there is no such folder").at(folder.string()).advise(with_start_of(folder, hint));
  }
  if (!std::filesystem::is_directory(folder, ignored))
    throw Error(ErrorKind::data, "expected a folder, got a file")
        .at(folder.string())
        .advise("name a model directory, a checkpoint or the folder of a run");
  if (!std::filesystem::exists(path, ignored)) {
    const bool is_huggingface = std::filesystem::exists(folder / "config.json", ignored);
    throw Error(ErrorKind::data, "this is {}no model directory: there is no fvlm.json in it",
                is_huggingface ? "a Hugging Face folder and " : "")
        .at(folder.string())
        .advise(is_huggingface
                    ? fmt::format(
                          "`fvlm-engine import --model {} --out models/{}` makes one of a whole model such as SmolVLM "
                          "or Qwen2-VL, or of a language model; of an encoder and a decoder: import --vision DIR "
                          "--decoder DIR",
                          shell_word(folder.string()), shell_word(folder.filename().string()))
                    : "`fvlm-engine import --vision DIR --decoder DIR --out DIR` makes one from two Hugging Face "
                      "folders, and import --model DIR from a whole model's");
  }
  Json json = read_json_object(path, largest_file);
  ConfigReader reader(json, path.string());
  int64_t version = reader.whole("format_version", std::nullopt, 1);
  reader.finish("this fvlm.json was not written by fvlm-engine");
  if (version > format_version)
    throw Error(ErrorKind::data, "format version {} is not known to this engine, which reads 1 to {}", version,
                format_version)
        .at(path.string())
        .advise("it was written by a newer fvlm-engine: use that one");

  const bool has_parts = version > 1;
  reader.refuse_unknown(std::array{"format_version", "model", has_parts ? "parts" : "connector", "stage", "step",
                                   "plan_hash", "checksums"});
  ModelFile out;
  out.model = reader.text("model", folder.filename().string());
  if (reader.has("stage")) out.stage = reader.text("stage", std::nullopt);
  if (reader.has("plan_hash")) out.plan_hash = reader.text("plan_hash", std::nullopt);
  out.step = reader.whole("step", 0, 0, INT64_MAX);
  const Json* connector = has_parts ? nullptr : reader.object("connector");
  if (has_parts)
    read_parts(out, json, path.string(), reader.problems());
  else if (!connector)
    reader.problems().add("'connector' is missing");
  if (const Json* checksums = reader.object("checksums"))
    read_checksums(out, *checksums, path.string(), reader.problems());
  reader.finish("this fvlm.json was changed or damaged: fetch or import the model anew");
  if (connector) out.parts = parts_of_format_1(*connector, path.string());
  return out;
}

std::string ModelFile::text() const {
  nlohmann::ordered_json out;
  out["format_version"] = format_version;
  out["model"] = model;
  for (const Part& part : parts) out["parts"].push_back(part_json(part));
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

const ModelFile::Part& ModelFile::sole_part(Role role, const std::filesystem::path& folder) const {
  const auto count = std::count_if(parts.begin(), parts.end(), [&](const Part& part) { return part.role == role; });
  if (count != 1)
    throw Error(ErrorKind::data, "the model has {} {}s where one is expected", count, name_of(role))
        .at(folder.string());
  return *std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.role == role; });
}

std::optional<std::filesystem::path> encoder_folder(const std::filesystem::path& model) {
  const ModelFile file = ModelFile::read(model);
  std::optional<std::filesystem::path> folder;
  for (const ModelFile::Part& part : file.parts) {
    if (part.role != Role::encoder) continue;
    if (folder) return std::nullopt;
    folder = model / part.location;
  }
  return folder;
}

std::filesystem::path decoder_folder(const std::filesystem::path& model) {
  const ModelFile file = ModelFile::read(model);
  return model / file.sole_part(Role::decoder, model).location;
}

} // namespace fvlm
