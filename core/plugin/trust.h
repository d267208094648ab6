// Who could have written a file that the engine is about to run.
//
// The rule: nobody but root and the user who runs the engine can have put the file there or can change it. So each
// step of the way from / to the file is looked at, symlinks and the folders that hold them too: the owner must be root
// or the user; nobody else may write. A folder with the sticky bit (/tmp) may be writable for all, because nobody can
// rename or replace what others own in it, unless it is the plugin's own folder, where a stranger's file would lie
// beside the library. A group that holds only the owner ("user private group") counts as the owner.
//
// What this buys: between the check and the load only root and the user himself can swap the file, so the library is
// opened by its name ($ORIGIN and debuggers work) and its identity is compared before and after (OpenedFile). Who also
// names hashes (the lock file) gets what he hashed, whoever writes to the file meanwhile: a private copy.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/types.h>

namespace fvlm {

struct TrustPolicy {
  uid_t user;                                      // besides root
  std::filesystem::path also_owner_of;             // whose owner is trusted too (the program, for what it came with)
  std::function<bool(gid_t, uid_t)> private_group; // whether the group holds only this user
  TrustPolicy();                                   // the effective user, the groups of the system
};

// Resolves every symlink of `path` and returns where it leads. Throws Error(plugin) naming the step that others could
// change, its mode or owner, and the command that mends it.
std::filesystem::path check_trusted(const std::filesystem::path& path, const TrustPolicy& policy);

// As above, for a plugin's folder: the last step is held to the stricter rule.
std::filesystem::path check_trusted_folder(const std::filesystem::path& folder, const TrustPolicy& policy);

// What makes a file this file and no other, as far as the file system knows.
struct FileIdentity {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

// A regular file held open: its content is read through the descriptor, so a rename in between changes nothing.
class OpenedFile {
 public:
  explicit OpenedFile(const std::filesystem::path& path); // throws Error(plugin): missing, a folder, a pipe, unreadable
  ~OpenedFile();
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;

  // From here on read(), sha256() and content() are of a copy that nothing can change any more; path() and identity()
  // stay the file's. The copy lies beside links to what lies beside the file, so that $ORIGIN finds it, and as long as
  // the process lives. Throws Error(plugin).
  void make_private();

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& content() const { return content_; } // where to open what was read: path(), or the copy
  const FileIdentity& identity() const { return identity_; }        // when it was opened
  std::string sha256() const;
  std::string read(uint64_t offset, uint64_t bytes) const; // less where the file ends

  // Throws Error(plugin) when the file changed since it was opened or `path` now leads to another one, and there is no
  // private copy of it.
  void verify_unchanged() const;

 private:
  std::filesystem::path path_, content_;
  int descriptor_;
  FileIdentity identity_;
};

} // namespace fvlm
