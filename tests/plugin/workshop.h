// A temporary folder for the plugins of a test, and registry options that search only there.
#pragma once
#include "base/scratch_folder.h"
#include "plugin/registry.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace fvlm::test {
namespace fs = std::filesystem;

inline fs::path library(const std::string& name) {
  return fs::path(FVLM_TEST_LIBRARIES) / (name + ".so");
}

struct ManifestText {
  std::string name = "sample", version = "1.0", library = "plugin.so", abi = "1.0";
  std::string kinds = R"(["fvlm.attention/1"])", devices = R"(["cpu"])", more;

  std::string text() const {
    return fmt::format("name = \"{}\"\nversion = \"{}\"\ndescription = \"for a test\"\nlicense = \"MIT\"\n"
                       "library = \"{}\"\nabi = \"{}\"\nkinds = {}\ndevices = {}\n{}",
                       name, version, library, abi, kinds, devices, more);
  }
};

class Workshop : public testing::Test {
 protected:
  Workshop() { folder("plugins"); }

  fs::path root() const { return root_; }
  fs::path plugins() const { return root_ / "plugins"; }

  fs::path folder(const fs::path& relative) {
    fs::create_directories(root_ / relative);
    fs::permissions(root_ / relative, fs::perms(0755));
    return root_ / relative;
  }

  // Independent of the umask.
  fs::path write(const fs::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    fs::permissions(path, fs::perms(0644));
    return path;
  }

  // plugins/NAME/{plugin.toml,plugin.so}, or below another folder of the workshop.
  fs::path lay(const std::string& name, const std::string& built, const ManifestText& manifest = {},
               const fs::path& below = "plugins") {
    fs::path home = folder(below / name);
    fs::copy_file(library(built), home / "plugin.so", fs::copy_options::overwrite_existing);
    fs::permissions(home / "plugin.so", fs::perms(0755));
    write(home / "plugin.toml", manifest.text());
    return home;
  }

  RegistryOptions options() const {
    RegistryOptions options;
    options.directories = {plugins()};
    options.devices = DevicesHere{false, "no NVIDIA driver", {}};
    options.load.probe.program = FVLM_TEST_PROBE;
    options.load.probe.memory = root_ / "memory";
    options.load.trust.private_group = [](gid_t, uid_t) { return false; };
    return options;
  }

 private:
  const ScratchFolder scratch_;
  const fs::path root_ = fs::canonical(scratch_.path()); // as the loader names it
};

} // namespace fvlm::test
