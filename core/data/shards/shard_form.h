// The forms in which data lie on disk, a row of a table each: how the samples of a file are found.
#pragma once
#include "data/shards/retrying_file.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

class IndexWriter;
struct ShardSample;

// A table, whose rows are JSON objects only once they are decoded.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // Binary values are nlohmann's. Throws Error(data) for a damaged row, ReadError for a failing disk. [any thread]
  virtual nlohmann::json row(const ShardSample& sample) const = 0;
};

struct ShardForm {
  std::string_view name;                 // for messages
  std::vector<std::string_view> endings; // of file names; none: files with any other
  uint64_t index_version;                // of ShardIndex
  bool names_media;                      // samples are JSON objects, which name their images and videos
  std::string_view damage_mark;          // written behind what is left of a damaged .gz or .zst
  void (*scan)(const RetryingFile& file, IndexWriter& index);
  // Throws Error(data) where the beginning, or what the form has as a header, shows that the file is of another form,
  // empty or cut short. Of a file that is not compressed.
  void (*check_head)(const RetryingFile& file);
  std::unique_ptr<const RowReader> (*rows)(const RetryingFile& file) = nullptr; // must not outlive the file
};

// By the file's name, without .gz and .zst.
const ShardForm& form_of(const std::filesystem::path& path);
// Of the list that file_of_folder() writes.
const ShardForm& folder_form();

// The file that says which samples a folder has: its metadata.jsonl, as Hugging Face's imagefolder has it, else `list`,
// which is written anew where the folder has changed.
std::filesystem::path file_of_folder(const std::filesystem::path& folder, const std::filesystem::path& list);

void scan_tar_members(const RetryingFile& file, IndexWriter& index);
void scan_lines(const RetryingFile& file, IndexWriter& index);
void scan_objects(const RetryingFile& file, IndexWriter& index);
void scan_folder_list(const RetryingFile& file, IndexWriter& index);
void scan_tsv(const RetryingFile& file, IndexWriter& index);
void scan_parquet(const RetryingFile& file, IndexWriter& index);
void check_head_of_tar(const RetryingFile& file);
void check_head_of_lines(const RetryingFile& file);
void check_head_of_objects(const RetryingFile& file);
void check_head_of_tsv(const RetryingFile& file);
void check_head_of_parquet(const RetryingFile& file);
std::unique_ptr<const RowReader> open_tsv(const RetryingFile& file);
std::unique_ptr<const RowReader> open_parquet(const RetryingFile& file);

} // namespace fvlm
