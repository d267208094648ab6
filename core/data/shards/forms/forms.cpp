#include "base/error.h"
#include "base/text.h"
#include "data/shards/grouping.h"
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"
#include "data/shards/tar_header.h"
#include "data/shards/tar_scan.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>

namespace fvlm {
namespace {

const std::vector<ShardForm>& forms() {
  static const std::vector<ShardForm> all = {
      {"a list of JSON objects, one a line",
       {".jsonl", ".ndjson"},
       101,
       true,
       "\n{\"fvlm_broken\": \"the compressed file is damaged, and its further lines are lost\"}\n",
       scan_lines,
       check_head_of_lines},
      {"a JSON list", {".json"}, 201, true, "", scan_objects, check_head_of_objects},
      {"a table with tabs between its columns", {".tsv"}, 501, true, "", scan_tsv, check_head_of_tsv, open_tsv},
      {"a Parquet file", {".parquet"}, 402, true, "", scan_parquet, check_head_of_parquet, open_parquet},
      {"a tar", {}, 2, false, "", scan_tar_members, check_head_of_tar},
  };
  return all;
}

// The first character that is not blank within the first 4 KiB; nothing where there is none.
std::optional<char> first_character(const RetryingFile& file) {
  std::string head(std::min<uint64_t>(file.size(), 4096), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  const size_t mark = head.starts_with("\xef\xbb\xbf") ? 3 : 0;
  const size_t at = head.find_first_not_of(" \t\r\n", mark);
  return at == std::string::npos ? std::nullopt : std::optional(head[at]);
}

void require_samples(const RetryingFile& file) {
  if (file.size() == 0) throw Error(ErrorKind::data, "the file is empty");
}

} // namespace

const ShardForm& folder_form() {
  static const ShardForm folder = {"a folder", {}, 302, false, "", scan_folder_list, [](const RetryingFile&) {}};
  return folder;
}

const ShardForm& form_of(const std::filesystem::path& path) {
  std::string name = lower_case(path.filename().string());
  for (const std::string_view packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  const auto found = std::ranges::find_if(forms(), [&](const ShardForm& form) {
    return form.endings.empty() ||
           std::ranges::any_of(form.endings, [&](std::string_view ending) { return name.ends_with(ending); });
  });
  return *found;
}

void scan_tar_members(const RetryingFile& file, IndexWriter& index) {
  Grouping grouping([&](const ShardSample& sample) { index.add(sample); });
  scan_tar(file, [&](TarEntry&& item) { grouping.add(std::move(item)); });
  grouping.finish();
  for (const Damage& damage : grouping.reported()) index.report(damage);
  index.count_damages(grouping.damages() - grouping.reported().size());
}

void check_head_of_lines(const RetryingFile& file) {
  require_samples(file);
  if (first_character(file).value_or('{') != '{')
    throw Error(ErrorKind::data, "its first line is no JSON object, and a sample is one on each line");
}

void check_head_of_objects(const RetryingFile& file) {
  require_samples(file);
  const char first = first_character(file).value_or('[');
  if (first != '[' && first != '{') throw Error(ErrorKind::data, "it begins with neither a JSON list nor an object");
}

// A tar begins with the header of a member, an empty one with zeros.
void check_head_of_tar(const RetryingFile& file) {
  std::array<std::byte, tar_block> block{};
  if (file.size() >= tar_block) {
    file.read(0, block);
    if (is_zero(TarBlock(block)) || read_tar_header(TarBlock(block))) return;
  }
  throw Error(
      ErrorKind::data,
      "not a tar file: a shard is a .tar, .jsonl, .json, .tsv or .parquet of samples, may be compressed (.gz, .zst), "
      "or is a folder");
}

} // namespace fvlm
