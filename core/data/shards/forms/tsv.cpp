// Rows with tabs between their fields, below a line with the names of the columns, as pandas writes them: a field with
// a tab, a line break or a quotation mark stands in quotation marks, and those in it are doubled. Fields may be images
// in base64, so a row of many megabytes is as good as any: the scan keeps a piece of the file, and a read the row
// itself.
#include "base/error.h"
#include "base/utf8.h"
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {
namespace {

constexpr uint64_t piece_size = uint64_t{1} << 20;
constexpr uint64_t max_head_bytes = uint64_t{1} << 20;  // of the names of the columns
constexpr uint64_t max_row_bytes = uint64_t{512} << 20; // with its images

struct Record {
  uint64_t begin = 0, size = 0; // without the line break at its end
  int64_t line = 0;             // where it begins
  bool is_open = false;         // the file ends within quotation marks
};

// The records of a file, one after the other.
class Records {
 public:
  explicit Records(const RetryingFile& file) : file_(file) {
    if (rest().starts_with("\xef\xbb\xbf")) at_ = 3; // a UTF-8 mark
  }

  // The next one that is not blank; nothing at the end of the file.
  std::optional<Record> next() {
    while (at_ < file_.size()) {
      Record record{at_, 0, line_, false};
      record.is_open = !find_end();
      record.size = at_ - record.begin;
      if (at_ < file_.size()) ++at_, ++line_;
      if (!is_blank(record)) return record;
    }
    return std::nullopt;
  }

 private:
  bool is_blank(const Record& record) const {
    if (record.size != 1) return record.size == 0;
    char only = 0;
    file_.read(record.begin, std::as_writable_bytes(std::span(&only, 1)));
    return only == '\r';
  }

  // Goes to the line break behind a record, or the end of the file. Returns whether all quotation marks are closed.
  bool find_end() {
    bool is_quoted = false, is_start = true, was_quote = false; // of a field; the character before closed it
    while (at_ < file_.size()) {
      const std::string_view text = rest();
      if (is_quoted) {
        const size_t quote = std::min(text.find('"'), text.size());
        line_ += std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(quote), '\n');
        at_ += quote;
        if (quote == text.size()) continue;
        ++at_;
        is_quoted = false;
        was_quote = true;
        continue;
      }
      is_quoted = text.front() == '"' && (is_start || was_quote);
      is_start = was_quote = false;
      if (is_quoted) {
        ++at_;
        continue;
      }
      const std::string_view line = text.substr(0, text.find('\n'));
      const size_t tab = line.find('\t');
      at_ += std::min(tab, line.size());
      if (tab != std::string_view::npos) {
        ++at_;
        is_start = true;
      } else if (line.size() < text.size()) {
        return true;
      }
    }
    return !is_quoted;
  }

  // What is at hand of the file from here on.
  std::string_view rest() {
    if (at_ < chunk_at_ || at_ >= chunk_at_ + chunk_.size()) {
      chunk_at_ = at_;
      chunk_.resize(std::min(piece_size, file_.size() - at_));
      file_.read(at_, std::as_writable_bytes(std::span(chunk_)));
    }
    return std::string_view(chunk_).substr(at_ - chunk_at_);
  }

  const RetryingFile& file_;
  std::string chunk_;
  uint64_t chunk_at_ = 0, at_ = 0;
  int64_t line_ = 1;
};

std::vector<std::string> fields_of(std::string_view record) {
  if (record.ends_with('\r')) record.remove_suffix(1);
  std::vector<std::string> fields(1);
  bool is_quoted = false, is_start = true;
  for (size_t at = 0; at < record.size();) {
    if (is_quoted) {
      const size_t quote = std::min(record.find('"', at), record.size());
      fields.back() += record.substr(at, quote - at);
      is_quoted = record.substr(quote).starts_with("\"\"");
      if (is_quoted) fields.back() += '"';
      at = quote + (is_quoted ? 2 : 1);
      continue;
    }
    if (is_start && record[at] == '"') {
      is_quoted = true;
      is_start = false;
      ++at;
      continue;
    }
    const size_t tab = std::min(record.find('\t', at), record.size());
    fields.back() += record.substr(at, tab - at);
    is_start = tab < record.size();
    if (is_start) fields.emplace_back();
    at = tab + 1;
  }
  return fields;
}

std::string text_at(const RetryingFile& file, uint64_t begin, uint64_t size) {
  std::string text(size, '\0');
  file.read(begin, std::as_writable_bytes(std::span(text)));
  if (!is_utf8(text)) throw Error(ErrorKind::data, "its text is no UTF-8");
  return text;
}

// A column without a name, as pandas writes an index, is left out.
std::vector<std::string> columns_of(const RetryingFile& file) {
  const auto head = Records(file).next();
  if (!head) throw Error(ErrorKind::data, "the file is empty");
  if (head->size > max_head_bytes || head->is_open)
    throw Error(ErrorKind::data, "its first line is no list of column names");
  std::vector<std::string> names = fields_of(text_at(file, head->begin, head->size));
  std::set<std::string> seen;
  for (const std::string& name : names)
    if (!name.empty() && !seen.insert(name).second)
      throw Error(ErrorKind::data, "its first line names the column '{}' twice", name);
  if (names.size() < 2)
    throw Error(ErrorKind::data, "its first line has no tab, and a .tsv names its columns there, with tabs between");
  return names;
}

class TsvRows final : public RowReader {
 public:
  explicit TsvRows(const RetryingFile& file) : file_(file), columns_(columns_of(file)) {}

  // An empty field is null.
  nlohmann::json row(const ShardSample& sample) const override {
    const Member& member = sample.members.at(0);
    if (member.size > max_row_bytes)
      throw Error(ErrorKind::data, "it has {} bytes, more than the {} of a row", member.size, max_row_bytes);
    std::vector<std::string> fields = fields_of(text_at(file_, member.offset, member.size));
    if (fields.size() != columns_.size())
      throw Error(ErrorKind::data, "it has {} fields, and the first line names {} columns", fields.size(),
                  columns_.size())
          .advise("pandas.DataFrame.to_csv(FILE, sep=\"\\t\", index=False) writes what is read");
    nlohmann::json row = nlohmann::json::object();
    for (size_t i = 0; i < fields.size(); ++i)
      if (!columns_[i].empty())
        row[columns_[i]] = fields[i].empty() ? nlohmann::json() : nlohmann::json(std::move(fields[i]));
    return row;
  }

 private:
  const RetryingFile& file_;
  std::vector<std::string> columns_;
};

} // namespace

void scan_tsv(const RetryingFile& file, IndexWriter& index) {
  try {
    columns_of(file);
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    return index.report({0, error.what()});
  }
  Records records(file);
  records.next(); // the names of the columns
  for (int64_t number = 0; const auto record = records.next(); ++number) {
    ShardSample sample{.key = fmt::format("row {} (line {})", number, record->line),
                       .members = {{"row", record->begin, record->size}}};
    if (record->is_open) sample.damage = "the file ends within a field in quotation marks: it was cut short";
    index.add(sample);
  }
}

void check_head_of_tsv(const RetryingFile& file) {
  columns_of(file);
}

std::unique_ptr<const RowReader> open_tsv(const RetryingFile& file) {
  return std::make_unique<TsvRows>(file);
}

} // namespace fvlm
