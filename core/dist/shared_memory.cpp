#include "dist/shared_memory.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace fvlm::dist {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorKind::device, "{}: {}", what, std::strerror(errno));
}

} // namespace

SharedMemory::SharedMemory(Descriptor file, size_t bytes, std::string name)
    : file_(std::move(file)), bytes_(bytes), name_(std::move(name)) {
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (data == MAP_FAILED) fail("cannot map memory that processes share");
  data_ = static_cast<std::byte*>(data);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), bytes_(other.bytes_), name_(std::move(other.name_)),
      data_(std::exchange(other.data_, nullptr)) {}

SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, bytes_);
}

SharedMemory SharedMemory::create(size_t bytes) {
  Descriptor file(memfd_create("fvlm", MFD_CLOEXEC));
  if (!file || ftruncate(file.get(), static_cast<off_t>(header + bytes)) != 0)
    fail("cannot create memory that processes share");
  std::random_device random;
  const std::string key = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  const std::string path = fmt::format("/proc/{}/fd/{}", getpid(), file.get());
  SharedMemory memory(std::move(file), header + bytes, fmt::format("{} {}", key, path));
  std::memcpy(memory.data_, key.data(), key.size());
  return memory;
}

SharedMemory SharedMemory::open(const std::string& name) {
  const auto parts = split(name, ' ');
  if (parts.size() != 2) throw Error(ErrorKind::device, "'{}' names no memory of a process", name);
  const auto &key = parts[0], &path = parts[1];
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0) fail(fmt::format("cannot open memory of another process, {}", path));
  if (!S_ISREG(status.st_mode) || static_cast<size_t>(status.st_size) < header)
    throw Error(ErrorKind::device, "{} is not what another rank created: the ranks see other processes", path);
  SharedMemory memory(std::move(file), static_cast<size_t>(status.st_size), name);
  if (std::memcmp(memory.data_, key.data(), key.size()) != 0)
    throw Error(ErrorKind::device, "{} is not what another rank created: the ranks see other processes", path);
  return memory;
}

} // namespace fvlm::dist
