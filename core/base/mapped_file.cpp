#include "base/mapped_file.h"

#include "base/descriptor.h"
#include "base/error.h"

#include <sys/mman.h>
#include <sys/stat.h>

namespace fvlm {

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  Descriptor fd = open_to_read(path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) fail_on_file(path, "read the file's size");
  if (!S_ISREG(info.st_mode)) throw Error(ErrorKind::data, "not a regular file").at(path.string());
  std::shared_ptr<MappedFile> made(new MappedFile);
  if (info.st_size > 0) {
    auto size = static_cast<size_t>(info.st_size);
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (address == MAP_FAILED) fail_on_file(path, "map the file into memory");
    made->data_ = static_cast<const std::byte*>(address);
    made->size_ = size;
  }
  return made;
}

MappedFile::~MappedFile() {
  if (size_) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::span<const std::byte> part) const {
  constexpr size_t page = 4096;
  auto offset = static_cast<size_t>(part.data() - data_);
  size_t begin = (offset + page - 1) / page * page, end = (offset + part.size()) / page * page;
  if (begin < end) madvise(const_cast<std::byte*>(data_ + begin), end - begin, MADV_DONTNEED);
}

} // namespace fvlm
