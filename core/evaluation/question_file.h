// QuestionFile: the entries of a file of questions, read one by one.
#pragma once
#include "data/shards/shard_set.h"
#include "evaluation/forms/form.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::evaluation {

class QuestionFile {
 public:
  // A .json is read as a whole: a list of entries, or an object of them by id; an entry with a list "questions" is one
  // for each. Of .jsonl, .tsv and .parquet an entry is read when it is asked for. Of each, .gz and .zst are read, too.
  // `fields`: as a source's. Throws Error(data).
  QuestionFile(std::filesystem::path path, Parts::Fields fields);
  QuestionFile(const QuestionFile&) = delete; // what an entry refers to
  QuestionFile& operator=(const QuestionFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return rows_ ? rows_->size() : std::ssize(document_); }
  // For messages: "entry 3", "line 7", "row 3 (line 9)". [any thread]
  std::string place(int64_t number) const;
  // The file must outlive it. Throws Error(data) for an entry that is broken, ReadError for a failing disk. [any
  // thread]
  Entry entry(int64_t number) const;

 private:
  void read_document();
  nlohmann::json object(int64_t number) const;
  std::optional<nlohmann::json> with_index(const std::string& index) const;

  struct DocumentEntry {
    std::string id;
    nlohmann::json object;
  };
  std::filesystem::path path_;
  Parts::Fields fields_;
  std::vector<DocumentEntry> document_;
  std::optional<ShardSet> rows_; // none: it is a document
  mutable std::once_flag indexed_;
  mutable std::map<std::string, int64_t> by_index_; // entries by their `index`
};

} // namespace fvlm::evaluation
