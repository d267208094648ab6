#include "report/log_position.h"

#include "base/error.h"
#include "base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <optional>

namespace fvlm::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view events_begin = "events.out.tfevents.", events_end = ".fvlm-engine";

uint64_t size_of(const fs::path& file) {
  std::error_code absent;
  const auto size = fs::file_size(file, absent);
  return absent ? 0 : size;
}

bool ends_a_line(const fs::path& file, uint64_t at) {
  std::ifstream in(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(at - 1));
  return in.get() == '\n';
}

uint64_t whole_lines(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  uint64_t size = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) size += line.size() + 1;
  return size;
}

fs::path copy_aside(const fs::path& file) {
  fs::path aside = file;
  aside += ".aside";
  for (int number = 2; fs::exists(aside); ++number) aside.replace_extension(fmt::format("aside-{}", number));
  fs::copy_file(file, aside);
  return aside;
}

// A record is its length, the checksum of that, its bytes and the checksum of these: see event_record.h.
bool ends_a_record(const fs::path& file, uint64_t at) {
  std::ifstream in(file, std::ios::binary);
  const uint64_t size = size_of(file);
  uint64_t end = 0;
  while (end < at) {
    uint64_t length = 0;
    in.seekg(static_cast<std::streamoff>(end));
    if (!in.read(reinterpret_cast<char*>(&length), sizeof length) || length > size) return false;
    end += length + 16;
  }
  return end == at && at <= size;
}

// The seconds in "events.out.tfevents.SECONDS.fvlm-engine"; nothing for another file.
std::optional<int64_t> time_in_name(const std::string& name) {
  if (!name.starts_with(events_begin) || !name.ends_with(events_end)) return {};
  int64_t seconds = 0;
  const char* const end = name.data() + name.size() - events_end.size();
  const auto [read, error] = std::from_chars(name.data() + events_begin.size(), end, seconds);
  if (error != std::errc() || read != end || seconds > int64_t{1} << 40) return {};
  return seconds;
}

} // namespace

LogPosition lines_to_continue(const fs::path& file, uint64_t from) {
  const uint64_t size = size_of(file);
  if (from == 0 || (size >= from && ends_a_line(file, from))) return {file, from};
  if (size < from) {
    const uint64_t whole = whole_lines(file);
    log_warning("{}: {} of the {} bytes of metrics that stood here when the checkpoint was written are missing; {}",
                file.string(), from - size, from,
                whole > 0 ? "the log continues after its last whole line" : "a new log begins");
    return {file, whole};
  }
  const fs::path aside = copy_aside(file);
  log_warning("{}: byte {} ends no line, and the checkpoint was written there, so that this is not the file that the "
              "run wrote; it is kept as {}, and a new log begins",
              file.string(), from, aside.filename().string());
  return {file, 0};
}

LogPosition events_to_continue(const fs::path& run, uint64_t from) {
  std::optional<int64_t> newest, newest_name; // of regular files; of anything that has such a name
  fs::path file;
  for (const auto& entry : fs::directory_iterator(run)) {
    const auto time = time_in_name(entry.path().filename().string());
    if (!time) continue;
    newest_name = std::max(newest_name.value_or(*time), *time);
    if ((newest && *time <= *newest) || entry.symlink_status().type() != fs::file_type::regular) continue;
    newest = time;
    file = entry.path();
  }
  if (newest && (from == 0 || ends_a_record(file, from))) return {file, from};
  const int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const fs::path fresh =
      run / fmt::format("{}{}{}", events_begin, newest_name ? std::max(now, *newest_name + 1) : now, events_end);
  if (from > 0)
    log_warning("{}: {}; TensorBoard's curves begin anew in {}", run.string(),
                newest ? fmt::format("{} is not as it was when the checkpoint was written", file.filename().string())
                       : "the events file that the run wrote is missing",
                fresh.filename().string());
  return {fresh, 0};
}

} // namespace fvlm::report
