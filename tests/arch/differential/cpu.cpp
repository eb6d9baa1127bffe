// Two tables: features, and instructions that no test executes.
#include "tests/arch/differential/cpu.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace probed::test {
namespace {

struct Feature {
  std::string_view isa_set;  // its name, or the beginning of it when it ends in *
  std::string_view flag;
};

// Sets without a row are in every x86-64 processor, or are nops or #UD where they are unknown, which is as good a case
// as any. The first row that fits counts.
constexpr Feature kFeatures[] = {
    {"ADOX_ADCX", "adx"},
    {"AES", "aes"},
    {"AMD3DNOW", "3dnow"},
    {"AMX_*", "amx_tile"},
    {"AVX", "avx"},
    {"AVX2*", "avx2"},
    {"AVX512BW_*", "avx512bw"},
    {"AVX512CD_*", "avx512cd"},
    {"AVX512DQ_*", "avx512dq"},
    {"AVX512ER_*", "avx512er"},
    {"AVX512F_*", "avx512f"},
    {"AVX512_4FMAPS_*", "avx512_4fmaps"},
    {"AVX512_4VNNIW_*", "avx512_4vnniw"},
    {"AVX512_BF16_*", "avx512_bf16"},
    {"AVX512_BITALG_*", "avx512_bitalg"},
    {"AVX512_FP16_*", "avx512_fp16"},
    {"AVX512_GFNI_*", "avx512f"},
    {"AVX512_IFMA_*", "avx512ifma"},
    {"AVX512_VAES_*", "avx512f"},
    {"AVX512_VBMI2_*", "avx512_vbmi2"},
    {"AVX512_VBMI_*", "avx512vbmi"},
    {"AVX512_VNNI_*", "avx512_vnni"},
    {"AVX512_VP2INTERSECT_*", "avx512_vp2intersect"},
    {"AVX512_VPCLMULQDQ_*", "avx512f"},
    {"AVX512_VPOPCNTDQ_*", "avx512_vpopcntdq"},
    {"AVX512*", "avx512f"},
    {"AVXAES", "aes"},
    {"AVX_GFNI", "gfni"},
    {"AVX_VNNI", "avx_vnni"},
    {"BMI1", "bmi1"},
    {"BMI2", "bmi2"},
    {"CLFLUSHOPT", "clflushopt"},
    {"CLWB", "clwb"},
    {"CLZERO", "clzero"},
    {"CMPXCHG16B", "cx16"},
    {"ENQCMD", "enqcmd"},
    {"F16C", "f16c"},
    {"FMA", "fma"},
    {"FMA4", "fma4"},
    {"GFNI", "gfni"},
    {"HRESET", "hreset"},
    {"KEYLOCKER*", "aeskle"},
    {"LWP", "lwp"},
    {"MOVBE", "movbe"},
    {"MOVDIR", "movdiri"},
    {"PADLOCK_*", "ace"},
    {"PCLMULQDQ", "pclmulqdq"},
    {"PKU", "pku"},
    {"PT", "intel_pt"},
    {"RDPID", "rdpid"},
    {"RDPRU", "rdpru"},
    {"RDRAND", "rdrand"},
    {"RDSEED", "rdseed"},
    {"RDTSCP", "rdtscp"},
    {"RDWRFSGS", "fsgsbase"},
    {"RTM", "rtm"},
    {"SERIALIZE", "serialize"},
    {"SHA", "sha_ni"},
    {"SSE3", "pni"},
    {"SSE4", "sse4_1"},
    {"SSE42", "sse4_2"},
    {"SSE4A", "sse4a"},
    {"SSSE3*", "ssse3"},
    {"TBM", "tbm"},
    {"TDX", "tdx_guest"},
    {"TSX_LDTRK", "tsxldtrk"},
    {"UINTR", "uintr"},
    {"VAES", "vaes"},
    {"VPCLMULQDQ", "vpclmulqdq"},
    {"WAITPKG", "waitpkg"},
    {"XOP", "xop"},
    {"XSAVE", "xsave"},
    {"XSAVEC", "xsavec"},
    {"XSAVEOPT", "xsaveopt"},
};

struct Banned {
  ZydisMnemonic mnemonic;
  std::string_view why;
};
constexpr std::string_view kHypercall = "calls the hypervisor, which may rewrite the instruction where it stands";
constexpr std::string_view kWaits = "waits for somebody's store or for a time";
constexpr std::string_view kPinned = "takes the test's memory away or interrupts it";
constexpr std::string_view kRandomOutcome = "aborts when it likes";
constexpr Banned kBanned[] = {
    {ZYDIS_MNEMONIC_VMCALL, kHypercall},     {ZYDIS_MNEMONIC_VMMCALL, kHypercall}, {ZYDIS_MNEMONIC_TDCALL, kHypercall},
    {ZYDIS_MNEMONIC_SEAMCALL, kHypercall},   {ZYDIS_MNEMONIC_VMFUNC, kHypercall},  {ZYDIS_MNEMONIC_MWAITX, kWaits},
    {ZYDIS_MNEMONIC_MONITORX, kWaits},       {ZYDIS_MNEMONIC_UMWAIT, kWaits},      {ZYDIS_MNEMONIC_TPAUSE, kWaits},
    {ZYDIS_MNEMONIC_UMONITOR, kWaits},       {ZYDIS_MNEMONIC_WRPKRU, kPinned},     {ZYDIS_MNEMONIC_SENDUIPI, kPinned},
    {ZYDIS_MNEMONIC_UIRET, kPinned},         {ZYDIS_MNEMONIC_ENQCMD, kPinned},     {ZYDIS_MNEMONIC_ENQCMDS, kPinned},
    {ZYDIS_MNEMONIC_XBEGIN, kRandomOutcome},
};

const std::set<std::string, std::less<>>& cpu_flags() {
  static const std::set<std::string, std::less<>> flags = [] {
    std::set<std::string, std::less<>> found;
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("flags")) continue;
      std::istringstream words(line.substr(line.find(':') + 1));
      for (std::string word; words >> word;) found.insert(word);
      break;
    }
    return found;
  }();
  return flags;
}

bool fits(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

}  // namespace

bool cpu_has(std::string_view flag) { return cpu_flags().contains(flag); }

std::string_view missing_feature(const Form& form) {
  const std::string_view set = ZydisISASetGetString(form.isa_set);
  const auto row = std::ranges::find_if(kFeatures, [&](const Feature& f) { return fits(f.isa_set, set); });
  return row == std::end(kFeatures) || cpu_has(row->flag) ? std::string_view() : row->flag;
}

std::string_view never_executed(ZydisMnemonic mnemonic) {
  const auto row = std::ranges::find(kBanned, mnemonic, &Banned::mnemonic);
  return row == std::end(kBanned) ? std::string_view() : row->why;
}

bool executed_here(const Form& form) { return missing_feature(form).empty() && never_executed(form.mnemonic).empty(); }

std::map<std::string, std::set<std::string>> not_executed() {
  std::map<std::string, std::set<std::string>> result;
  for (const auto all : {forms(), evex_forms()})
    for (const Form& form : all) {
      if (form.refusal != arch::Refusal::none || executed_here(form)) continue;
      const std::string_view flag = missing_feature(form), why = never_executed(form.mnemonic);
      const std::string reason = flag.empty() ? std::string(why) : "this processor has no " + std::string(flag);
      result[reason].insert(ZydisMnemonicGetString(form.mnemonic));
    }
  return result;
}

}  // namespace probed::test
