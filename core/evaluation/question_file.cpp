#include "evaluation/question_file.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "base/text.h"
#include "data/shards/unpack.h"

#include <fmt/format.h>

namespace fvlm::evaluation {
namespace {

using nlohmann::json;

std::optional<ShardSet> rows_of(const std::filesystem::path& path) {
  const std::string name = fvlm::lower_case(path.filename().string());
  for (const char* ending : {".json", ".json.gz", ".json.zst"})
    if (name.ends_with(ending)) return std::nullopt;
  if (!form_of(path).names_media || std::filesystem::is_directory(path))
    throw Error(ErrorKind::data, "questions are read from .json, .jsonl, .tsv and .parquet files").at(path.string());
  return std::optional<ShardSet>(std::in_place, std::vector{path.string()});
}

// Of a .gz or .zst, what is in it.
std::string document_text(const std::filesystem::path& path) {
  constexpr uint64_t most = uint64_t{1} << 30;
  const RetryingFile file(path, {});
  if (!is_packed(file)) return read_file(path, most);
  const ScratchFolder folder;
  const auto unpacked = folder / "document.json";
  unpack(file, unpacked, most);
  return read_file(unpacked, most);
}

std::string index_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

} // namespace

QuestionFile::QuestionFile(std::filesystem::path path, Parts::Fields fields)
    : path_(std::move(path)), fields_(std::move(fields)), rows_(rows_of(path_)) {
  if (!rows_) read_document();
}

void QuestionFile::read_document() {
  const json document = parse_json(document_text(path_), path_.string());
  if (!document.is_structured())
    throw Error(ErrorKind::data, "neither a list nor an object of entries").at(path_.string());
  for (const auto& [key, entry] : document.items()) {
    const auto questions = entry.is_object() ? entry.find("questions") : entry.end();
    if (!entry.is_object() || questions == entry.end() || !questions->is_array()) {
      document_.push_back({key, entry});
      continue;
    }
    for (const json& question : *questions) {
      json merged = entry;
      merged.erase("questions");
      if (question.is_object()) merged.update(question);
      document_.push_back({fmt::format("{}-{}", key, &question - &questions->front()), std::move(merged)});
    }
  }
}

std::string QuestionFile::place(int64_t number) const {
  if (!rows_) return "entry " + document_.at(static_cast<size_t>(number)).id;
  const SampleLocation at = rows_->locate(number);
  return rows_->shard(at)->sample(at.sample).key;
}

json QuestionFile::object(int64_t number) const {
  if (!rows_) {
    const json& entry = document_.at(static_cast<size_t>(number)).object;
    if (!entry.is_object()) wrong_type("it", entry, "an object");
    return entry;
  }
  const SampleLocation at = rows_->locate(number);
  const auto shard = rows_->shard(at);
  const ShardSample sample = shard->sample(at.sample);
  if (!sample.damage.empty()) broken(sample.damage);
  return shard->json(sample).value();
}

Entry QuestionFile::entry(int64_t number) const {
  return {object(number), rows_ ? place(number) : document_.at(static_cast<size_t>(number)).id, path_.stem().string(),
          fields_, [this](const std::string& index) { return with_index(index); }};
}

std::optional<json> QuestionFile::with_index(const std::string& index) const {
  std::call_once(indexed_, [&] {
    for (int64_t number = 0; number < size(); ++number) try {
        const json entry = object(number);
        if (const json* own = value_at(entry, "index")) by_index_.emplace(index_of(*own), number);
      } catch (const ReadError&) {
        throw;
      } catch (const Error&) { // whoever asks for this entry is told
      }
  });
  const auto found = by_index_.find(index);
  return found == by_index_.end() ? std::nullopt : std::optional(object(found->second));
}

} // namespace fvlm::evaluation
