#include "cli/answer_file.h"

#include "base/error.h"
#include "base/new_file.h"
#include "base/terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <fstream>
#include <string_view>
#include <sys/file.h>
#include <unistd.h>
#include <utility>

namespace fvlm::cli {
namespace {

constexpr std::string_view beginning = R"({"key":)"; // of every line

// A line that was cut is the beginning of one.
bool may_be_cut(std::string_view text) {
  return text.starts_with(beginning.substr(0, text.size()));
}

std::string or_none(const std::string& options) {
  return options.empty() ? "no options" : "the options '" + options + "'";
}

} // namespace

AnswerFile::AnswerFile(std::filesystem::path path, std::string model, std::string options)
    : path_(std::move(path)), model_(std::move(model)), options_(std::move(options)), fd_(open_kept_file(path_)) {
  if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw Error(ErrorKind::usage, "another process writes answers into this file")
        .at(path_.string())
        .advise("let it end, or name another file");
  std::ifstream in(path_, std::ios::binary);
  uint64_t whole = 0; // bytes of whole lines
  for (std::string line; std::getline(in, line); whole += line.size() + 1) {
    if (!in.eof()) {
      take_line(line);
      continue;
    }
    if (!may_be_cut(line)) take_line(line); // which refuses it
    if (ftruncate(fd_.get(), static_cast<off_t>(whole)) != 0) fail_to_write(path_, "cut the file");
    break;
  }
  if (in.bad()) fail_on_file(path_, "read the file");
  if (lseek(fd_.get(), 0, SEEK_END) < 0) fail_to_write(path_, "find the end of the file");
}

void AnswerFile::take_line(const std::string& text) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::data, "line {} {}", lines_ + 1, what)
        .at(path_.string())
        .advise("name another file, or remove this one to begin anew");
  };
  const auto line = nlohmann::json::parse(text, nullptr, false);
  const auto text_at = [&](const char* name) -> std::string {
    const auto found = line.find(name);
    return found == line.end() || !found->is_string() ? "" : found->get<std::string>();
  };
  if (!line.is_object() || text_at("key").empty() || !(line.contains("answer") || line.contains("error")))
    refuse("is no answer of `generate --data`");
  if (const std::string of = text_at("model"); of != model_)
    refuse(fmt::format("is an answer of another model, {}, and not of {}", of, model_));
  // Lines of earlier versions do not say.
  if (const std::string with = text_at("options"); line.contains("options") && with != options_)
    refuse(fmt::format("was answered with {}, and not with {}", or_none(with), or_none(options_)));
  count(text_at("key"), text_at("error"));
}

void AnswerFile::count(const std::string& key, const std::string& error) {
  keys_.insert(key);
  ++lines_;
  if (error.empty()) return;
  if (++failed_ == 1) first_error_ = fmt::format("{}: {}", key, error);
}

void AnswerFile::append(const std::string& key, const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line = {{"key", key}, {"model", model_}, {"options", options_}};
  line.update(fields);
  // Some readers take U+0085, too, for the end of a line.
  write(escape_control_characters(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) + "\n");
  count(key, fields.value("error", ""));
}

void AnswerFile::write(const std::string& text) {
  for (std::string_view left = text; !left.empty();) {
    const ssize_t written = ::write(fd_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to_write(path_, "write the file");
    left.remove_prefix(static_cast<size_t>(written));
  }
}

} // namespace fvlm::cli
