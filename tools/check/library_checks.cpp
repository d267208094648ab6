// Checks of every plugin's library: its file, its entry point, its tables.
#include "base/elf.h"
#include "base/text.h"
#include "check/context.h"
#include "check/families.h"
#include "plugin/kinds.h"

#include <fvlm/fvlm.h>

#include <algorithm>
#include <thread>

namespace fvlm::check {
namespace {

Outcome with_file(Context& context, const std::function<Outcome(const ElfFile&)>& look) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  ElfFile file = read_elf(context.subject.library());
  return file.problem.empty() ? look(file) : failed(file.problem);
}

// Later rows find the exact defect; this row reports whether the engine would load the library.
Outcome loads(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  const auto& refusal = context.subject.refusal;
  if (!refusal) return not_applicable("the engine's loader was not asked");
  return refusal->empty() ? ok() : failed("{}", *refusal);
}

Outcome is_library(Context& context) {
  return with_file(context, [](const ElfFile&) { return ok(); });
}

Outcome exports_entry_alone(Context& context) {
  return with_file(context, [](const ElfFile& file) {
    std::vector<std::string> others;
    for (const auto& symbol : file.exports) {
      // Symbols that old linkers export by themselves.
      static constexpr std::string_view linkers[] = {"_init", "_fini", "_edata", "_end", "__bss_start"};
      if (symbol != FVLM_PLUGIN_ENTRY && std::ranges::find(linkers, symbol) == std::end(linkers))
        others.push_back(symbol);
    }
    if (std::ranges::find(file.exports, FVLM_PLUGIN_ENTRY) == file.exports.end())
      return failed("it does not export " FVLM_PLUGIN_ENTRY);
    if (others.empty()) return ok();
    const size_t count = others.size();
    if (count > 3) others.resize(3);
    return failed("it exports {} symbols more: {}{} (compile with -fvisibility=hidden, C++ also links with "
                  "-Wl,--version-script=fvlm/exports.map)",
                  count, join(others, ", "), count > 3 ? ", ..." : "");
  });
}

Outcome needs_no_torch(Context& context) {
  return with_file(context, [](const ElfFile& file) {
    for (const auto& library : file.needed)
      for (std::string_view ours : {"libtorch", "libc10", "libcaffe2", "libfvlm", "libpython"})
        if (library.starts_with(ours)) return failed("it is linked with {}", library);
    return ok(fmt::format("needs {}", join(file.needed, ", ")));
  });
}

Outcome stack_not_executable(Context& context) {
  return with_file(context, [](const ElfFile& file) {
    return file.executable_stack ? failed("its stack is executable (assembler without .note.GNU-stack?)") : ok();
  });
}

Outcome code_not_writable(Context& context) {
  return with_file(context, [](const ElfFile& file) {
    if (file.writable_code) return failed("a segment is both writable and executable");
    return file.text_relocations ? failed("it has text relocations: compile with -fPIC") : ok();
  });
}

Outcome run_paths_absolute(Context& context) {
  return with_file(context, [](const ElfFile& file) {
    for (const auto& folder : file.run_paths)
      if (!folder.starts_with('/') && !folder.starts_with("$ORIGIN"))
        return failed("it looks for libraries in '{}', which depends on the working directory", folder);
    return ok();
  });
}

// C++ registers destructors of static objects by the same function as exit handlers.
bool destroys_objects(const std::vector<std::string>& imports) {
  return std::ranges::any_of(imports, [](const std::string& name) {
    return name.starts_with("_Z") || name.starts_with("_Unwind_") || name.starts_with("__gxx") ||
           name == "__cxa_thread_atexit_impl" || name == "dl_iterate_phdr";
  });
}

Outcome no_exit_handlers(Context& context) {
  return with_file(context, [](const ElfFile& file) {
    for (const std::string& name : file.imports)
      if (name == "atexit" || name == "on_exit" || name == "at_quick_exit" || name == "__cxa_at_quick_exit" ||
          (name == "__cxa_atexit" && !destroys_objects(file.imports)))
        return failed("it registers functions to be called at the end of the process ({}), which is the engine's",
                      name == "__cxa_atexit" ? "atexit" : name);
    return ok();
  });
}

// "" if the process's state has not changed.
std::string changed_since(const ProcessState& before) {
  const ProcessState after = ProcessState::now();
  for (Aspect aspect : aspects)
    if (auto text = before.difference(after, aspect); !text.empty())
      return text + (aspect == Aspect::float_mode ? " (linked with -ffast-math?)" : "");
  return "";
}

Outcome opens(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  const ProcessState before = ProcessState::now();
  if (auto failure = context.subject.open(); !failure.empty()) return failed(failure);
  if (auto changed = changed_since(before); !changed.empty())
    return failed("loading it changed the process: {}", changed);
  return ok();
}

// These hosts have to outlive the plugin, which may keep them.
fvlm_host* host_like(Context& context, uint32_t struct_size, uint32_t major, uint32_t minor) {
  struct Longer {
    fvlm_host host;
    unsigned char more[64];
  };
  auto* longer = new Longer{*context.host().abi(), {}};
  std::fill_n(longer->more, sizeof longer->more, static_cast<unsigned char>(0xEE));
  longer->host.struct_size = struct_size;
  longer->host.abi_major = major;
  longer->host.abi_minor = minor;
  return &longer->host;
}

Outcome enters(Context& context) {
  context.host(); // its threads are not the plugin's
  const ProcessState before = ProcessState::now();
  if (auto failure = context.subject.enter(); !failure.empty()) return failed(failure);
  if (context.subject.built_in()) return ok();
  if (auto changed = changed_since(before); !changed.empty())
    return failed("its entry point changed the process: {}", changed);
  return ok();
}

Outcome entry_refuses_size(Context& context) {
  for (uint32_t size : {0u, 4u})
    if (context.subject.entry()(host_like(context, size, FVLM_ABI_MAJOR, FVLM_ABI_MINOR)))
      return failed("it accepted a host with struct_size {}", size);
  return ok();
}

Outcome entry_refuses_major(Context& context) {
  for (uint32_t major : {FVLM_ABI_MAJOR + 1u, 0u})
    if (context.subject.entry()(host_like(context, sizeof(fvlm_host), major, 0)))
      return failed("it accepted a host of ABI {}.0; it was compiled for {}.{}", major,
                    context.subject.plugin().abi_major, context.subject.plugin().abi_minor);
  return ok();
}

Outcome entry_accepts_minor(Context& context) {
  if (!context.subject.entry()(host_like(context, sizeof(fvlm_host) + 64, FVLM_ABI_MAJOR, FVLM_ABI_MINOR + 7)))
    return failed("it refused a host of ABI {}.{}", FVLM_ABI_MAJOR, FVLM_ABI_MINOR + 7);
  return ok();
}

Outcome entry_idempotent(Context& context) {
  const fvlm_plugin* first = &context.subject.plugin();
  for (int i = 0; i < 3; ++i)
    if (const fvlm_plugin* again = context.subject.entry()(context.host().abi()); again != first)
      return failed("the entry returned {} and then {}", static_cast<const void*>(first),
                    static_cast<const void*>(again));
  return ok();
}

Outcome describes_itself(Context& context) {
  const fvlm_plugin& plugin = context.subject.plugin();
  if (plugin.struct_size < sizeof(fvlm_plugin))
    return failed("the plugin's struct_size is {}, at least {} is needed", plugin.struct_size, sizeof(fvlm_plugin));
  if (plugin.abi_major != FVLM_ABI_MAJOR) return failed("abi_major is {}", plugin.abi_major);
  if (!plugin.name || !plugin.name[0]) return failed("it has no name");
  if (!plugin.version || !plugin.version[0]) return failed("it has no version");
  return ok(fmt::format("{} {}, ABI {}.{}", plugin.name, plugin.version, plugin.abi_major, plugin.abi_minor));
}

Outcome gives_a_kind(Context& context) {
  auto kinds = context.subject.kinds();
  if (kinds.empty()) return failed("it gives no table for any kind that it declares or that this engine knows");
  return ok(join(kinds, ", "));
}

Outcome tables_stable(Context& context) {
  for (const auto& kind : context.subject.kinds()) {
    const void* first = context.subject.table(kind);
    const void* elsewhere = nullptr;
    std::thread([&] { elsewhere = context.subject.table(kind); }).join();
    const std::string copy = kind; // the same text at another address
    if (context.subject.plugin().table(copy.c_str()) != first || elsewhere != first)
      return failed("{}: another pointer each time", kind);
  }
  return ok();
}

Outcome unknown_kinds(Context& context) {
  for (const char* kind :
       {"", "fvlm.nothing/1", "fvlm.attention/99", "fvlm.loss/", "fvlm.packer/1:", "fvlm.optimizer/1",
        "fvlm.optimizer/1:no-such-algorithm", "fvlm.quantizer/1", "fvlm.kernels/1x"})
    if (context.subject.plugin().table(kind)) return failed("it gives a table for the kind '{}'", kind);
  return ok();
}

// Other required members of this family's table: names and arrays.
std::vector<TableSlot> required_data(const Family& family) {
  if (family.label == "optimizer")
    return {{"algorithm", offsetof(fvlm_optimizer_v1, algorithm)},
            {"hyperparameters", offsetof(fvlm_optimizer_v1, hyperparameters)}};
  if (family.label == "quantizer") return {{"scheme", offsetof(fvlm_quantizer_v1, scheme)}};
  return {};
}

Outcome tables_complete(Context& context) {
  for (const auto& kind : context.subject.kinds()) {
    const auto* table = static_cast<const fvlm_table*>(context.subject.table(kind));
    const Family& family = *find_family(parse_kind(kind)->family);
    if (table->struct_size < family.min_size)
      return failed("{}: the table's struct_size is {}, at least {} is needed", kind, table->struct_size,
                    family.min_size);
    std::vector<TableSlot> slots = required_data(family);
    slots.insert(slots.end(), family.required.begin(), family.required.end());
    for (const TableSlot& slot : slots)
      if (!slot.is_set(table)) return failed("{}: {} is NULL", kind, slot.name);
  }
  return ok();
}

Outcome backward_with_forward(Context& context) {
  if (!context.subject.table(FVLM_KERNELS_KIND)) return not_applicable("it gives no kernels");
  const void* table = context.subject.complete_table(FVLM_KERNELS_KIND);
  for (const TableOperation& operation : kernel_operations())
    if (!operation.is_implemented(table) &&
        std::ranges::any_of(operation.slots, [&](const TableSlot& slot) { return slot.is_set(table); }))
      return failed("{} has one of forward and backward alone", operation.name);
  return ok();
}

Outcome variant_agrees(Context& context) {
  bool any = false;
  for (const auto& kind : context.subject.kinds()) {
    auto colon = kind.find(':');
    if (colon == std::string::npos) continue;
    any = true;
    const void* table = context.subject.table(kind);
    const char* named = family_of(kind) == "optimizer" ? static_cast<const fvlm_optimizer_v1*>(table)->algorithm
                                                       : static_cast<const fvlm_quantizer_v1*>(table)->scheme;
    if (!named || kind.substr(colon + 1) != named)
      return failed("the table of {} says '{}'", kind, named ? named : "(null)");
  }
  return any ? ok() : not_applicable("no kind of its has variants");
}

Outcome manifest_agrees(Context& context) {
  const auto& declared = context.subject.declared();
  if (!declared) return not_applicable("no plugin.toml beside the library");
  const fvlm_plugin& plugin = context.subject.plugin();
  const auto text = [](const char* given) { return given ? std::string(given) : "(NULL)"; };
  if (const std::string name = text(plugin.name); declared->name != name)
    return failed("plugin.toml says name = \"{}\", the library \"{}\"", declared->name, name);
  if (const std::string version = text(plugin.version); declared->version != version)
    return failed("plugin.toml says version = \"{}\", the library \"{}\"", declared->version, version);
  if (const std::string abi = fmt::format("{}.{}", plugin.abi_major, plugin.abi_minor); declared->abi != abi)
    return failed("plugin.toml says abi = \"{}\", the library was compiled with {}", declared->abi, abi);
  return ok();
}

Outcome manifest_kinds(Context& context) {
  const auto& declared = context.subject.declared();
  if (!declared) return not_applicable("no plugin.toml beside the library");
  for (const auto& kind : declared->kinds)
    if (!context.subject.table(kind)) return failed("plugin.toml declares {}, the library gives no such table", kind);
  for (const auto& kind : context.subject.kinds())
    if (std::ranges::find(declared->kinds, kind) == declared->kinds.end())
      return failed("the library gives {}, which plugin.toml does not declare", kind);
  return ok(join(declared->kinds, ", "));
}

} // namespace

Table library_table() {
  return {
      "library",
      {
          {"loads", "the engine's loader takes it: the file, sizes of structs, functions, sample answers", loads},
          {"is_library", "the file is a shared library for this machine", is_library},
          {"exports_entry_alone", "it exports fvlm_plugin_entry_v1 and nothing else", exports_entry_alone,
           "is_library"},
          {"needs_no_torch", "it is linked with neither LibTorch, Python nor the engine", needs_no_torch, "is_library"},
          {"stack_not_executable", "it asks for no executable stack", stack_not_executable, "is_library"},
          {"code_not_writable", "its code is not writable and not relocated", code_not_writable, "is_library"},
          {"run_paths_absolute", "it looks for libraries in no folder that depends on the working directory",
           run_paths_absolute, "is_library"},
          {"no_exit_handlers", "it registers no function for the end of the process", no_exit_handlers, "is_library"},
          {"opens", "it loads, and loading starts no thread, opens no file, leaves signals, environment and float mode",
           opens, "is_library"},
          {"enters", "the entry answers with a plugin", enters, "opens"},
          {"entry_refuses_size", "the entry refuses a host with a struct_size of 0 or too small", entry_refuses_size,
           "enters"},
          {"entry_refuses_major", "the entry refuses a host of another major version", entry_refuses_major, "enters"},
          {"entry_accepts_minor", "the entry takes a younger host, longer than ours", entry_accepts_minor, "enters"},
          {"entry_idempotent", "the entry returns the same pointer each time", entry_idempotent, "enters"},
          {"describes_itself", "the plugin has a name, a version and this ABI's major", describes_itself, "enters"},
          {"gives_a_kind", "it gives a table for at least one kind", gives_a_kind, "enters"},
          {"tables_stable", "table() returns the same pointer each time, on any thread", tables_stable, "enters"},
          {"tables_complete", "tables are as long as the ABI's and have every required function", tables_complete,
           "enters"},
          {"unknown_kinds", "table() returns NULL for kinds that are not there", unknown_kinds, "enters"},
          {"variant_agrees", "a table's algorithm or scheme is the one in its kind's name", variant_agrees,
           "enters,tables_complete"},
          {"backward_with_forward", "every kernel with a forward has its backward", backward_with_forward,
           "enters,tables_complete"},
          {"manifest_agrees", "plugin.toml has the library's name, version and ABI", manifest_agrees, "enters"},
          {"manifest_kinds", "plugin.toml declares the kinds that the library gives", manifest_kinds, "enters"},
      },
      {}};
}

} // namespace fvlm::check
