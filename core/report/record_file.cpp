#include "report/record_file.h"

#include "base/error.h"
#include "base/log.h"
#include "base/new_file.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm::report {
namespace {

// Without checkpoints the file flushes itself at this size, which bounds the written records that are kept in memory.
constexpr uint64_t sync_every = uint64_t{1} << 20;

// Number of bytes of `record` that were written at `offset`; errno is set if not all of them.
size_t write_at(int fd, std::string_view record, uint64_t offset) {
  size_t done = 0;
  while (done < record.size()) {
    ssize_t written = pwrite(fd, record.data() + done, record.size() - done, static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  return done;
}

} // namespace

RecordFile::RecordFile(std::filesystem::path path, uint64_t size)
    : path_(std::move(path)), fd_(open_kept_file(path_)), durable_(size), end_(size) {
  struct stat found {};
  if (fstat(fd_.get(), &found) != 0) fail_on_file(path_, "look at the file");
  auto there = static_cast<uint64_t>(found.st_size);
  if (there < size)
    throw Error(ErrorKind::data, "the file has {} bytes, and had {} when the checkpoint was written", there, size)
        .at(path_.string());
  if (there > size && ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) fail_to_write(path_, "cut the file");
  if (fdatasync(fd_.get()) != 0) fail_to_write(path_, "flush the file to disk");
}

void RecordFile::append(std::string record) {
  if (kept_bytes_ + record.size() > max_kept) {
    ++lost_;
    return;
  }
  kept_bytes_ += record.size();
  kept_.push_back(std::move(record));
  if (write_out() && kept_bytes_ > sync_every) flush();
}

bool RecordFile::write_out() {
  for (; written_ < kept_.size(); ++written_) {
    const std::string& record = kept_[written_];
    if (write_at(fd_.get(), record, end_) < record.size()) {
      trouble("write");
      // If this fails too, the next attempt overwrites the partial record.
      [[maybe_unused]] int ignored = ftruncate(fd_.get(), static_cast<off_t>(end_));
      return false;
    }
    end_ += record.size();
  }
  if (!unsynced_) recovered();
  return true;
}

uint64_t RecordFile::flush() {
  bool all = write_out();
  if (written_ == 0) return durable_;
  if (fdatasync(fd_.get()) != 0) {
    // After a failed fsync the kernel may consider the pages clean, so they have to be written again.
    trouble("flush");
    unsynced_ = true;
    written_ = 0;
    end_ = durable_;
    return durable_;
  }
  unsynced_ = false;
  durable_ = end_;
  for (; written_ > 0; --written_) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
  if (all) recovered();
  return durable_;
}

void RecordFile::trouble(const char* action) {
  if (!std::exchange(troubled_, true))
    log_warning("{}: cannot {} the file: {}\n  the run goes on; what it would write waits in memory and is tried again",
                path_.string(), action, std::strerror(errno));
}

void RecordFile::recovered() {
  if (!std::exchange(troubled_, false)) return;
  uint64_t lost = std::exchange(lost_, 0);
  if (lost > 0)
    log_warning("{}: written again; {} records found no room in memory and are lost", path_.string(), lost);
  else
    log_info("{}: written again, nothing is lost", path_.string());
}

} // namespace fvlm::report
