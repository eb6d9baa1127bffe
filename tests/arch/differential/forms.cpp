// The enumeration and the families; see forms.hpp.
#include "tests/arch/differential/forms.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "arch/x86_64/decode.hpp"
#include "arch/x86_64/zydis.hpp"
#include "tests/arch/differential/cpu.hpp"

namespace probed::test {

using arch::Flow;
using arch::Refusal;

namespace {

// Bytes up to and including the opcode; ModRM and zeros follow. Zeros are good displacements and immediates.
struct Probe {
  std::array<std::uint8_t, 24> bytes{};
  std::size_t size = 0;

  void add(unsigned byte) { bytes[size++] = static_cast<std::uint8_t>(byte); }
};

bool is_prefix_or_escape(unsigned opcode) {
  constexpr std::uint8_t kList[] = {0x0f, 0x26, 0x2e, 0x36, 0x3e, 0x62, 0x64, 0x65,
                                    0x66, 0x67, 0xc4, 0xc5, 0xf0, 0xf2, 0xf3};
  return (opcode & 0xf0) == 0x40 || std::ranges::find(kList, opcode) != std::end(kList);
}

ZydisInstructionEncoding zydis_encoding(Encoding encoding) {
  constexpr ZydisInstructionEncoding kEncodings[] = {ZYDIS_INSTRUCTION_ENCODING_LEGACY,
                                                     ZYDIS_INSTRUCTION_ENCODING_3DNOW, ZYDIS_INSTRUCTION_ENCODING_VEX,
                                                     ZYDIS_INSTRUCTION_ENCODING_XOP, ZYDIS_INSTRUCTION_ENCODING_EVEX};
  return kEncodings[static_cast<std::size_t>(encoding)];
}

class Enumeration {
 public:
  std::vector<Form> take() { return std::move(forms_); }

  // All ModRM bytes of one opcode. Combinations of the same mnemonic are one form. Behind VEX, XOP and EVEX prefixes rm
  // is always a register, and reg too but for a few groups.
  void opcode(const Form& what, const Probe& up_to_opcode, bool group = true) {
    from_ = forms_.size();
    const bool legacy = what.encoding == Encoding::legacy || what.encoding == Encoding::now3d;
    const unsigned vsib = legacy ? 0 : 4;  // rm 4 has a SIB byte, which gathers need
    for (unsigned reg = 0; reg < (group ? 8u : 1u); ++reg) {
      const std::uint64_t regs = group ? 0xffULL << reg * 8 : ~0ULL;
      try_modrm(what, up_to_opcode, true, reg, vsib, regs & 0x0101'0101'0101'0101);
      if (forms_.size() > from_ && !forms_.back().has_modrm) return;
      if (!legacy) try_modrm(what, up_to_opcode, false, reg, 1, regs);
      for (unsigned rm = 0; rm < 8 && legacy; ++rm)
        try_modrm(what, up_to_opcode, false, reg, rm, 1ULL << (reg * 8 + rm));
    }
  }

 private:
  void try_modrm(const Form& what, Probe probe, bool memory, unsigned reg, unsigned rm, std::uint64_t mask) {
    probe.add((memory ? 0u : 0xc0u) | reg << 3 | rm);
    if (memory && rm == 4) probe.add(0x20);  // index 4: differs from most registers, as gathers want it
    if (what.encoding == Encoding::now3d) probe.add(what.opcode);
    const ZydisDecodedInstruction* insn = decode(probe);
    if (insn == nullptr || insn->encoding != zydis_encoding(what.encoding)) return;
    for (std::size_t i = from_; i < forms_.size(); ++i)
      if (forms_[i].mnemonic == insn->mnemonic && forms_[i].memory == memory) {
        forms_[i].modrm |= mask;
        return;
      }
    Form form = what;
    form.has_modrm = (insn->attributes & ZYDIS_ATTRIB_HAS_MODRM) != 0;
    form.memory = memory;
    form.modrm = mask;
    describe(form, *insn, probe);
    forms_.push_back(form);
  }

  const ZydisDecodedInstruction* decode(const Probe& probe) {
    return arch::x86_64::decode_with_zydis(probe.bytes, decoded_) ? &decoded_.insn : nullptr;
  }

  static void describe(Form& form, const ZydisDecodedInstruction& insn, const Probe& probe) {
    form.mnemonic = insn.mnemonic;
    form.isa_set = insn.meta.isa_set;
    form.isa_ext = insn.meta.isa_ext;
    form.category = insn.meta.category;
    const arch::Insn facts = arch::x86_64::decode(probe.bytes, 0);
    form.flow = facts.flow;
    form.refusal = facts.refusal;
  }

  arch::x86_64::Decoded decoded_;
  std::vector<Form> forms_;
  std::size_t from_ = 0;
};

void enumerate_legacy(Enumeration& all) {
  for (const unsigned prefix : {0x00u, 0x66u, 0xf2u, 0xf3u})
    for (const bool wide : {false, true})
      for (unsigned map = 0; map < 4; ++map)
        for (unsigned opcode = 0; opcode < 256; ++opcode) {
          if (map == 0 && is_prefix_or_escape(opcode)) continue;
          if (map == 1 && (opcode == 0x0f || opcode == 0x38 || opcode == 0x3a)) continue;
          Probe probe;
          if (prefix != 0) probe.add(prefix);
          if (wide) probe.add(0x48);
          if (map != 0) probe.add(0x0f);
          if (map >= 2) probe.add(map == 2 ? 0x38 : 0x3a);
          probe.add(opcode);
          Form form;
          form.prefix = static_cast<std::uint8_t>(prefix);
          form.map = static_cast<std::uint8_t>(map);
          form.opcode = static_cast<std::uint8_t>(opcode);
          form.wide = wide;
          all.opcode(form, probe);
        }
}

void enumerate_now3d(Enumeration& all) {
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    Probe probe;
    probe.add(0x0f);
    probe.add(0x0f);
    Form form;
    form.encoding = Encoding::now3d;
    form.opcode = static_cast<std::uint8_t>(opcode);
    all.opcode(form, probe);
  }
}

// VEX (c4) and XOP (8f). Some forms need vvvv unused (1111), others a register that differs from the operands'.
void enumerate_vex(Enumeration& all, Encoding encoding, unsigned first_map, unsigned last_map) {
  for (unsigned map = first_map; map <= last_map; ++map)
    for (unsigned bits = 0; bits < 16; ++bits)
      for (unsigned opcode = 0; opcode < 256; ++opcode)
        for (const unsigned vvvv : {0xfu, 0x5u}) {
          Form form;
          form.encoding = encoding;
          form.prefix = bits & 3;
          form.length = bits >> 2 & 1;
          form.wide = (bits & 8) != 0;
          form.map = static_cast<std::uint8_t>(map);
          form.opcode = static_cast<std::uint8_t>(opcode);
          Probe probe;
          probe.add(encoding == Encoding::vex ? 0xc4 : 0x8f);
          probe.add(0xe0 | map);
          probe.add((form.wide ? 0x80u : 0u) | vvvv << 3 | static_cast<unsigned>(form.length) << 2 | form.prefix);
          probe.add(opcode);
          all.opcode(form, probe);
        }
}

void enumerate_evex_opcode(Enumeration& all, Form form, unsigned vvvv) {
  Probe probe;
  probe.add(0x62);
  probe.add(0xf0u | form.map);
  probe.add((form.wide ? 0x80u : 0u) | vvvv << 3 | 4u | form.prefix);
  probe.add((form.zeroing ? 0x80u : 0u) | static_cast<unsigned>(form.length) << 5 | (form.broadcast ? 0x10u : 0u) | 8u |
            (form.masked ? 1u : 0u));
  probe.add(form.opcode);
  const bool shifts = form.map == 1 && form.opcode >= 0x71 && form.opcode <= 0x73;
  const bool prefetches = form.map == 2 && (form.opcode == 0xc6 || form.opcode == 0xc7);
  all.opcode(form, probe, shifts || prefetches);
}

void enumerate_evex(Enumeration& all) {
  for (const unsigned map : {1u, 2u, 3u, 5u, 6u})
    for (unsigned bits = 0; bits < 64; ++bits)
      for (const auto& [masked, zeroing] : {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}})
        for (unsigned opcode = 0; opcode < 256; ++opcode)
          for (const unsigned vvvv : {0xfu, 0x5u}) {
            Form form;
            form.encoding = Encoding::evex;
            form.prefix = bits & 3;
            form.length = bits >> 2 & 3;
            form.wide = (bits & 16) != 0;
            form.broadcast = (bits & 32) != 0;
            form.masked = masked;
            form.zeroing = zeroing;
            form.map = static_cast<std::uint8_t>(map);
            form.opcode = static_cast<std::uint8_t>(opcode);
            enumerate_evex_opcode(all, form, vvvv);
          }
}

// The two vvvv found many forms twice.
std::vector<Form> merged(std::vector<Form> found) {
  const auto key = [](const Form& f) {
    return std::tuple(f.encoding, f.prefix, f.map, f.opcode, f.length, f.wide, f.broadcast, f.masked, f.zeroing,
                      f.memory, f.mnemonic);
  };
  std::ranges::stable_sort(found, {}, key);
  std::vector<Form> result;
  for (const Form& form : found) {
    if (!result.empty() && key(result.back()) == key(form))
      result.back().modrm |= form.modrm;
    else
      result.push_back(form);
  }
  return result;
}

template <ZydisMnemonic... names>
bool is(const Form& form) {
  return ((form.mnemonic == names) || ...);
}

template <ZydisISAExt... names>
bool of(const Form& form) {
  return ((form.isa_ext == names) || ...);
}

bool moves_stack(const Form& form) {
  return form.category == ZYDIS_CATEGORY_PUSH || form.category == ZYDIS_CATEGORY_POP ||
         is<ZYDIS_MNEMONIC_ENTER, ZYDIS_MNEMONIC_LEAVE>(form);
}

bool does_nothing(const Form& form) {
  return form.category == ZYDIS_CATEGORY_NOP || form.category == ZYDIS_CATEGORY_WIDENOP ||
         form.category == ZYDIS_CATEGORY_PREFETCH || is<ZYDIS_MNEMONIC_ENDBR32, ZYDIS_MNEMONIC_ENDBR64>(form);
}

bool is_integer(const Form& form) {
  constexpr ZydisInstructionCategory kCategories[] = {
      ZYDIS_CATEGORY_BINARY,  ZYDIS_CATEGORY_LOGICAL,  ZYDIS_CATEGORY_SHIFT,     ZYDIS_CATEGORY_ROTATE,
      ZYDIS_CATEGORY_BITBYTE, ZYDIS_CATEGORY_DATAXFER, ZYDIS_CATEGORY_CMOV,      ZYDIS_CATEGORY_SETCC,
      ZYDIS_CATEGORY_CONVERT, ZYDIS_CATEGORY_FLAGOP,   ZYDIS_CATEGORY_SEMAPHORE, ZYDIS_CATEGORY_MISC};
  return of<ZYDIS_ISA_EXT_BASE, ZYDIS_ISA_EXT_LONGMODE>(form) &&
         std::ranges::find(kCategories, form.category) != std::end(kCategories);
}

// The first row that fits takes a form. Weights: about as often as the relocator has something to do, not as often as
// programs execute them.
struct FamilyRule {
  std::string_view name;
  unsigned weight;
  bool (*fits)(const Form&);
};
constexpr FamilyRule kRules[] = {
    {"call", 7, [](const Form& f) { return f.flow == Flow::call || f.flow == Flow::indirect_call; }},
    {"jump", 3, [](const Form& f) { return f.flow == Flow::jump || f.flow == Flow::indirect_jump; }},
    {"return", 2, [](const Form& f) { return f.flow == Flow::ret && f.mnemonic != ZYDIS_MNEMONIC_RSM; }},
    {"conditional branch", 5, [](const Form& f) { return f.flow == Flow::cond_jump; }},
    {"system call", 2, [](const Form& f) { return f.flow == Flow::syscall; }},
    {"stack", 7, moves_stack},
    {"string", 5, [](const Form& f) { return f.category == ZYDIS_CATEGORY_STRINGOP; }},
    {"nop, endbr, prefetch", 2, does_nothing},
    {"integer", 20, is_integer},
    {"bit manipulation", 3,
     of<ZYDIS_ISA_EXT_BMI1, ZYDIS_ISA_EXT_BMI2, ZYDIS_ISA_EXT_LZCNT, ZYDIS_ISA_EXT_ADOX_ADCX, ZYDIS_ISA_EXT_MOVBE,
        ZYDIS_ISA_EXT_TBM>},
    {"x87", 6, of<ZYDIS_ISA_EXT_X87>},
    {"mmx, 3dnow", 3, of<ZYDIS_ISA_EXT_MMX, ZYDIS_ISA_EXT_AMD3DNOW>},
    {"sse", 10,
     of<ZYDIS_ISA_EXT_SSE, ZYDIS_ISA_EXT_SSE2, ZYDIS_ISA_EXT_SSE3, ZYDIS_ISA_EXT_SSSE3, ZYDIS_ISA_EXT_SSE4,
        ZYDIS_ISA_EXT_SSE4A, ZYDIS_ISA_EXT_AES, ZYDIS_ISA_EXT_PCLMULQDQ, ZYDIS_ISA_EXT_SHA, ZYDIS_ISA_EXT_GFNI>},
    {"avx, avx2, fma", 12,
     of<ZYDIS_ISA_EXT_AVX, ZYDIS_ISA_EXT_AVX2, ZYDIS_ISA_EXT_AVX2GATHER, ZYDIS_ISA_EXT_FMA, ZYDIS_ISA_EXT_F16C,
        ZYDIS_ISA_EXT_AVXAES, ZYDIS_ISA_EXT_VAES, ZYDIS_ISA_EXT_VPCLMULQDQ, ZYDIS_ISA_EXT_AVX_VNNI, ZYDIS_ISA_EXT_FMA4,
        ZYDIS_ISA_EXT_XOP>},
    {"avx-512", 12, of<ZYDIS_ISA_EXT_AVX512EVEX, ZYDIS_ISA_EXT_AVX512VEX>},
    {"state save and restore", 2,
     [](const Form& f) {
       return f.isa_ext == ZYDIS_ISA_EXT_XSAVE || f.isa_ext == ZYDIS_ISA_EXT_XSAVEC ||
              f.isa_ext == ZYDIS_ISA_EXT_XSAVEOPT || f.isa_set == ZYDIS_ISA_SET_FXSAVE ||
              f.isa_set == ZYDIS_ISA_SET_FXSAVE64;
     }},
    {"system and the rest", 5, [](const Form&) { return true; }},
};

std::vector<Family> make_families() {
  std::array<std::map<ZydisMnemonic, std::vector<const Form*>>, std::size(kRules)> sorted;
  for (const auto all : {forms(), evex_forms()})
    for (const Form& form : all) {
      if (form.refusal != Refusal::none || !executed_here(form)) continue;
      const auto rule = std::ranges::find_if(kRules, [&](const FamilyRule& r) { return r.fits(form); });
      sorted[static_cast<std::size_t>(rule - kRules)][form.mnemonic].push_back(&form);
    }
  std::vector<Family> result;
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    if (sorted[i].empty()) continue;
    Family& family = result.emplace_back(Family{kRules[i].name, kRules[i].weight, {}});
    for (auto& [mnemonic, list] : sorted[i]) family.mnemonics.push_back(std::move(list));
  }
  return result;
}

}  // namespace

std::span<const Form> forms() {
  static const std::vector<Form> all = [] {
    Enumeration found;
    enumerate_legacy(found);
    enumerate_now3d(found);
    enumerate_vex(found, Encoding::vex, 1, 3);
    enumerate_vex(found, Encoding::xop, 8, 10);
    return merged(found.take());
  }();
  return all;
}

std::span<const Form> evex_forms() {
  static const std::vector<Form> all = [] {
    Enumeration found;
    enumerate_evex(found);
    return merged(found.take());
  }();
  return all;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = make_families();
  return all;
}

}  // namespace probed::test
