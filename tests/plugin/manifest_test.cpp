#include "base/error.h"
#include "workshop.h"

#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    parse_manifest(text, "/p/plugin.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::plugin);
    return error.text();
  }
  return "accepted";
}

std::string with(const std::function<void(ManifestText&)>& change) {
  ManifestText text;
  change(text);
  return text.text();
}

TEST(Manifest, HasAllValuesOfItsFile) {
  auto manifest = parse_manifest(with([](auto& text) {
                                   text.kinds = R"(["fvlm.attention/1", "fvlm.optimizer/1:adamw", "fvlm.future/1"])";
                                   text.devices = R"(["cpu", "cuda"])";
                                   text.more = "architectures = [\"sm_90a\", \"sm_100\"]\n";
                                 }),
                                 "/p/plugin.toml");
  EXPECT_EQ(manifest.name, "sample");
  EXPECT_EQ(manifest.library_path(), "/p/plugin.so");
  EXPECT_THAT(manifest.kinds, ElementsAre(KindName{"fvlm.attention/1", ""}, KindName{"fvlm.optimizer/1", "adamw"}));
  EXPECT_THAT(manifest.unknown_kinds, ElementsAre("fvlm.future/1"));
  EXPECT_THAT(manifest.architectures, ElementsAre("sm_90a", "sm_100"));
  EXPECT_TRUE(manifest.on_device("cuda"));
}

TEST(Manifest, OfALaterMinorIsRead) {
  EXPECT_EQ(parse_manifest(with([](auto& text) { text.abi = "1.12"; }), "/p/plugin.toml").abi_minor, 12);
}

TEST(Manifest, ErrorNamesFileAndLine) {
  EXPECT_THAT(error_of("name = \"a\"\nversion = 3\n"),
              HasSubstr("/p/plugin.toml:2: version: expected a string but got a number"));
  EXPECT_THAT(error_of("name = \"a\"\n\n[devices]\n"), HasSubstr("the key 'version' is missing"));
  EXPECT_THAT(error_of("name = \"a\"\nverson = \"1\"\n"),
              HasSubstr("/p/plugin.toml:2: unknown key 'verson'\n  did you mean 'version'?"));
  EXPECT_THAT(error_of("name = \"a"), HasSubstr("/p/plugin.toml:1: "));
}

TEST(Manifest, RequiresEveryKey) {
  const std::string whole = ManifestText().text();
  for (const char* key : {"name", "version", "description", "license", "library", "abi", "kinds", "devices"}) {
    size_t begin = whole.find(std::string(key) + " = ");
    std::string without = whole.substr(0, begin) + whole.substr(whole.find('\n', begin) + 1);
    EXPECT_THAT(error_of(without), HasSubstr(fmt::format("the key '{}' is missing", key)));
  }
}

struct BadValue {
  std::function<void(ManifestText&)> change;
  const char* reason;
};

TEST(Manifest, RefusesImpossibleValues) {
  const BadValue bad[] = {
      {[](auto& text) { text.name = "a/b"; }, "name: 'a/b' cannot be a plugin's name"},
      {[](auto& text) { text.name = ".."; }, "name: '..' cannot"},
      {[](auto& text) { text.name = "Upper"; }, "name: 'Upper' cannot"},
      {[](auto& text) { text.name = "auto"; }, "name: 'auto' cannot"},
      {[](auto& text) { text.name = ""; }, "name: is empty"},
      {[](auto& text) { text.name = std::string(65, 'a'); }, "cannot be a plugin's name"},
      {[](auto& text) { text.version = "1\\n2"; }, "version: contains a control character"},
      {[](auto& text) { text.version = std::string(5000, '1'); }, "version: is too long"},
      {[](auto& text) { text.library = "/lib/plugin.so"; }, "library: '/lib/plugin.so' is a path"},
      {[](auto& text) { text.library = ".."; }, "library: '..' is a path"},
      {[](auto& text) { text.abi = "1"; }, "abi: '1' is not a version"},
      {[](auto& text) { text.abi = "1.0.0"; }, "abi: '1.0.0' is not a version"},
      {[](auto& text) { text.abi = "+1.0"; }, "abi: '+1.0' is not a version"},
      {[](auto& text) { text.abi = "0.9"; }, "abi: built for ABI 0.9"},
      {[](auto& text) { text.kinds = "\"fvlm.attention/1\""; }, "kinds: expected a list of strings but got a string"},
      {[](auto& text) { text.kinds = "[1]"; }, "kinds: expected a string but got a number"},
      {[](auto& text) { text.kinds = R"(["attention"])"; }, "kinds: 'attention' is not a kind"},
      {[](auto& text) { text.kinds = R"(["fvlm.attention/one"])"; }, "kinds: 'fvlm.attention/one' is not a kind"},
      {[](auto& text) { text.kinds = R"(["fvlm.optimizer/1"])"; }, "kinds: 'fvlm.optimizer/1' lacks its variant"},
      {[](auto& text) { text.kinds = R"(["fvlm.optimizer/1:"])"; }, "is not a kind"},
      {[](auto& text) { text.kinds = R"(["fvlm.attention/1:fast"])"; }, "has a variant, but attention has none"},
      {[](auto& text) { text.kinds = R"(["fvlm.attention/1", "fvlm.attention/1"])"; },
       "'fvlm.attention/1' is listed twice"},
      {[](auto& text) { text.devices = R"(["tpu"])"; }, "devices: unknown device 'tpu'"},
      {[](auto& text) { text.devices = "[]"; }, "devices: is empty"},
      {[](auto& text) { text.more = "architectures = [\"90a\"]\n"; }, "architectures: unknown architecture '90a'"},
  };
  for (const auto& one : bad) EXPECT_THAT(error_of(with(one.change)), HasSubstr(one.reason));
}

TEST_F(Workshop, ManifestAbove64KibIsRefused) {
  write(root() / "plugin.toml", std::string(70'000, '#'));
  EXPECT_THROW(read_manifest(root() / "plugin.toml"), Error);
}

} // namespace
} // namespace fvlm::test
