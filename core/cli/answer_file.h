// AnswerFile: the answers that `generate --data` writes, a JSON object a line. A later call goes on where an earlier
// one was cut.
#pragma once
#include "base/descriptor.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_set>

namespace fvlm::cli {

class AnswerFile {
 public:
  // Opens or creates the file, and removes a last line that was written in part. `model`: that all answers are of;
  // `options`: which they were given with. Throws Error(data) for a file of something else, of another model or with
  // other options, Error(usage) where another process writes it.
  AnswerFile(std::filesystem::path path, std::string model, std::string options);

  // Whether a sample of this key was answered, or failed, before this call.
  bool has(const std::string& key) const { return keys_.contains(key); }
  int64_t lines() const { return lines_; }
  int64_t failed() const { return failed_; } // lines with an error
  const std::string& first_error() const { return first_error_; }
  // A line of the sample `key` and these fields. Throws Error(output).
  void append(const std::string& key, const nlohmann::ordered_json& fields);

 private:
  void take_line(const std::string& line);
  void count(const std::string& key, const std::string& error);
  void write(const std::string& text);

  std::filesystem::path path_;
  std::string model_, options_;
  Descriptor fd_;
  std::unordered_set<std::string> keys_;
  int64_t lines_ = 0, failed_ = 0;
  std::string first_error_;
};

} // namespace fvlm::cli
