// Checks that a file which the engine is about to load as code could not be written by other users.
//
// The rule: only root and the user who runs the engine may be able to create or change the file. So every component of
// its path is checked, including symlinks and their folders: it has to be owned by root or the user, and not be
// writable by anybody else. A folder with the sticky bit (/tmp) may be world-writable, because others cannot rename or
// replace a file in it, unless it is the plugin's own folder, in which a file of somebody else's would lie next to the
// library. A group whose only member is the owner ("user private group") is treated as the owner.
//
// As a consequence, only root and the user can replace the file between the check and the load. So the library is
// opened by its path, which keeps $ORIGIN and debuggers working, and its identity is compared before and after
// (OpenedFile). With a lock file, a private copy is hashed and opened, which nobody can change.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/types.h>

namespace fvlm {

struct TrustPolicy {
  uid_t user;                          // besides root
  std::filesystem::path also_owner_of; // a file whose owner is trusted, too (the program, for bundled plugins)
  std::function<bool(gid_t, uid_t)> private_group; // whether the group holds only this user
  TrustPolicy();                                   // the effective user, the groups of the system
};

// Returns `path` with every symlink resolved. Throws Error(plugin) with the component that others could change, its
// mode or owner, and the command that corrects it.
std::filesystem::path check_trusted(const std::filesystem::path& path, const TrustPolicy& policy);

// As above, for a plugin's own folder, where the sticky bit does not suffice.
std::filesystem::path check_trusted_folder(const std::filesystem::path& folder, const TrustPolicy& policy);

// Identifies a file and its content, as far as the file system can tell.
struct FileIdentity {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

// An open regular file. Its content is read through the descriptor, so that renames in between have no effect.
class OpenedFile {
 public:
  explicit OpenedFile(const std::filesystem::path& path); // throws Error(plugin): missing, a folder, a pipe, unreadable
  ~OpenedFile();
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;

  // Makes an immutable copy in memory, which read(), sha256() and content() refer to from now on; path() and identity()
  // remain the file's. The copy's folder has links to the other files of the original's, so that $ORIGIN works, and
  // exists until the process ends. Throws Error(plugin).
  void make_private();

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& content() const { return content_; } // path(), or that of the private copy
  const FileIdentity& identity() const { return identity_; }        // when it was opened
  std::string sha256() const;
  std::string read(uint64_t offset, uint64_t bytes) const; // fewer bytes at the end of the file

  // Throws Error(plugin) where the file has changed since it was opened or `path` refers to another one, unless there
  // is a private copy.
  void verify_unchanged() const;

 private:
  std::filesystem::path path_, content_;
  int descriptor_;
  FileIdentity identity_;
};

} // namespace fvlm
