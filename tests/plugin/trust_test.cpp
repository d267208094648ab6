#include "base/error.h"
#include "base/hash.h"
#include "plugin/lock.h"
#include "workshop.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

namespace fvlm::test {
namespace {

using testing::HasSubstr;

class Trust : public Workshop {
 protected:
  std::string error_of(const fs::path& path, const TrustPolicy& policy) {
    try {
      check_trusted(path, policy);
    } catch (const Error& error) {
      return error.text();
    }
    return "trusted";
  }
};

TEST_F(Trust, FollowsStickyFoldersAndSymlinks) {
  fs::path sticky = folder("sticky"), home = folder("sticky/home");
  ASSERT_EQ(chmod(sticky.c_str(), 01777), 0);
  fs::path file = write(home / "file", "x");
  fs::create_symlink("../sticky/home", root() / "plugins" / "link");
  EXPECT_EQ(check_trusted(root() / "plugins" / "link" / "file", TrustPolicy()), file);
  EXPECT_EQ(check_trusted(root() / "plugins" / ".." / "." / "sticky" / "home" / "file", TrustPolicy()), file);
}

TEST_F(Trust, RefusesASymlinkInAWorldWritableFolder) {
  fs::path open = folder("open");
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);
  fs::create_symlink("/usr/bin/env", open / "link");
  EXPECT_THAT(error_of(open / "link", TrustPolicy()), HasSubstr("a world-writable folder (mode 0777)"));
}

TEST_F(Trust, RefusesFilesOfAnotherUser) {
  fs::path file = write(root() / "file", "x");
  if (geteuid() != 0) {
    TrustPolicy somebody_else;
    somebody_else.user += 1;
    EXPECT_THAT(error_of(file, somebody_else), HasSubstr("belongs to"));
    return;
  }
  // Files of root are always trusted, so their owner is changed.
  ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
  EXPECT_THAT(error_of(file, TrustPolicy()), testing::AllOf(HasSubstr("a file owned by user 12345, not by root"),
                                                            testing::Not(HasSubstr("root or root"))));
  ASSERT_EQ(chown(root().c_str(), 12345, 12345), 0);
  ASSERT_EQ(chown(file.c_str(), 0, 0), 0);
  EXPECT_THAT(error_of(file, TrustPolicy()), HasSubstr("a folder owned by user 12345"));
  TrustPolicy with_its_owner;
  with_its_owner.also_owner_of = root();
  EXPECT_EQ(error_of(file, with_its_owner), "trusted");
}

TEST_F(Trust, OfAGroupDependsOnItsMembers) {
  fs::path file = write(root() / "file", "x");
  ASSERT_EQ(chmod(file.c_str(), 0664), 0);
  TrustPolicy policy;
  policy.private_group = [](gid_t, uid_t) { return true; };
  EXPECT_EQ(error_of(file, policy), "trusted");
  policy.private_group = [](gid_t, uid_t) { return false; };
  EXPECT_THAT(error_of(file, policy), HasSubstr("a group-writable file (mode 0664)"));
  EXPECT_THAT(error_of(file, policy), HasSubstr("chmod g-w " + file.string()));
}

TEST_F(Trust, NamesMissingFiles) {
  EXPECT_THAT(error_of(root() / "nothing", TrustPolicy()), HasSubstr("nothing: no such file or folder"));
}

TEST_F(Trust, NoticesThatAnOpenFileWasReplacedOrWritten) {
  fs::path file = write(root() / "file", "first");
  OpenedFile opened(file);
  EXPECT_EQ(opened.sha256(), sha256_hex("first"));
  opened.verify_unchanged();
  write(root() / "second", "other");
  fs::rename(root() / "second", file);
  EXPECT_THROW(opened.verify_unchanged(), Error);
  EXPECT_EQ(opened.sha256(), sha256_hex("first")) << "the descriptor still reads what was checked";

  OpenedFile again(file);
  write(file, "changed");
  EXPECT_THROW(again.verify_unchanged(), Error);
}

class Lock : public Workshop {
 protected:
  std::string reason(const PluginLock& lock) {
    auto settings = options();
    settings.load.lock = lock;
    Registry registry(settings);
    std::string why = "loaded";
    registry.load("sample", &why);
    return why;
  }
};

TEST_F(Lock, AllowsListedPluginsOnly) {
  fs::path home = lay("sample", "sample");
  fs::path file = root() / "deep" / "er" / "plugins.lock";
  PluginLock lock;
  lock.trust("another", {std::string(64, '0'), "/somewhere"});
  lock.write(file);
  EXPECT_THAT(reason(PluginLock::read(file)), HasSubstr("'sample' is not in the lock file " + file.string()));

  lock.trust("sample", {sha256_file(home / "plugin.so"), home / "plugin.so"});
  lock.write(file);
  EXPECT_EQ(reason(PluginLock::read(file)), "loaded");
  EXPECT_EQ(PluginLock::read(file).entries().at("sample").library, home / "plugin.so");

  std::ofstream(home / "plugin.so", std::ios::app) << "x";
  EXPECT_THAT(reason(PluginLock::read(file)), HasSubstr("but the lock file " + file.string() + " has "));
}

TEST_F(Lock, DoesNotApplyToBundledPlugins) {
  lay("sample", "sample", {}, "bundled");
  auto settings = options();
  settings.bundled = root() / "bundled";
  settings.load.bundled = {{"sample", sha256_file(library("sample"))}};
  settings.load.lock = PluginLock();
  Registry registry(settings);
  EXPECT_TRUE(registry.load("sample"));
}

TEST_F(Lock, MalformedFileIsAnError) {
  fs::path file = root() / "plugins.lock";
  for (const char* text :
       {"", "[]", "{}", R"({"format": "fvlm.plugin-lock/2", "plugins": {}})", R"({"format": "fvlm.plugin-lock/1"})",
        R"({"format": "fvlm.plugin-lock/1", "plugins": {"a": {"sha256": "12"}}})",
        R"({"format": "fvlm.plugin-lock/1", "plugins": {"a": 3}})"}) {
    write(file, text);
    try {
      PluginLock::read(file);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::plugin);
      EXPECT_THAT(error.text(), HasSubstr("the lock file is malformed")) << text;
    }
  }
  EXPECT_THROW(PluginLock::read(root() / "none.lock"), Error);
}

} // namespace
} // namespace fvlm::test
