// The table of forms (Arm ARM, C4.1: encodings by group, in the order of that chapter).
#include "arch/aarch64/forms.hpp"

#include <algorithm>
#include <array>

#include "arch/aarch64/word.hpp"
#include "proto/base/check.hpp"

namespace probed::arch::aarch64 {
namespace {

constexpr FormRow kForms[] = {
    // Reserved, SME, unallocated, SVE. What SME and SVE have is plain, but for movprfx, which the processor may fuse
    // with the instruction behind it and which means nothing without it.
    {0xffff0000, 0x00000000, Form::udf, Flow::next, Refusal::none, "udf"},
    {0x9e000000, 0x00000000, Form::refused, Flow::next, Refusal::undecodable, "reserved"},
    {0x1e000000, 0x02000000, Form::refused, Flow::next, Refusal::undecodable, "unallocated"},
    {0x1e000000, 0x06000000, Form::refused, Flow::next, Refusal::undecodable, "unallocated"},
    {0xfffffc00, 0x0420bc00, Form::prefix, Flow::next, Refusal::sequence, "movprfx, unpredicated"},
    {0xff3ee000, 0x04102000, Form::prefix, Flow::next, Refusal::sequence, "movprfx, predicated"},

    // Data processing, immediate. autiasppc checks a signature that was made with an address counted from its own.
    {0x9f000000, 0x10000000, Form::adr, Flow::next, Refusal::none, "adr"},
    {0x9f000000, 0x90000000, Form::adrp, Flow::next, Refusal::none, "adrp"},
    {0xff80001f, 0xf380001f, Form::refused, Flow::next, Refusal::position, "autiasppc, autibsppc"},

    // Branches, exception generating and system instructions: all of them.
    {0xfc000000, 0x14000000, Form::branch, Flow::jump, Refusal::none, "b"},
    {0xfc000000, 0x94000000, Form::branch_link, Flow::call, Refusal::none, "bl"},
    {0xff000010, 0x54000000, Form::branch_condition, Flow::cond_jump, Refusal::none, "b.cond"},
    {0xff000010, 0x54000010, Form::branch_consistent, Flow::cond_jump, Refusal::none, "bc.cond"},
    {0xffc0001f, 0x5500001f, Form::refused, Flow::ret, Refusal::position, "retaasppc, retabsppc, label"},
    {0x7e000000, 0x34000000, Form::branch_compare, Flow::cond_jump, Refusal::none, "cbz, cbnz"},
    {0x7e000000, 0x36000000, Form::branch_test, Flow::cond_jump, Refusal::none, "tbz, tbnz"},
    {0x7e000000, 0x74000000, Form::refused, Flow::cond_jump, Refusal::unsupported, "cb<cc> (FEAT_CMPBR)"},
    {0xfffffc1f, 0xd61f0000, Form::branch_register, Flow::indirect_jump, Refusal::none, "br"},
    {0xfffff81f, 0xd61f081f, Form::branch_authenticated, Flow::indirect_jump, Refusal::none, "braaz, brabz"},
    {0xfffff800, 0xd71f0800, Form::branch_authenticated, Flow::indirect_jump, Refusal::none, "braa, brab"},
    {0xfffffc1f, 0xd63f0000, Form::branch_link_register, Flow::indirect_call, Refusal::none, "blr"},
    {0xfffff81f, 0xd63f081f, Form::branch_link_authenticated, Flow::indirect_call, Refusal::none, "blraaz, blrabz"},
    {0xfffff800, 0xd73f0800, Form::branch_link_authenticated, Flow::indirect_call, Refusal::none, "blraa, blrab"},
    {0xfffffc1f, 0xd65f0000, Form::ret, Flow::ret, Refusal::none, "ret"},
    {0xfffffbff, 0xd65f0bff, Form::ret_authenticated, Flow::ret, Refusal::none, "retaa, retab"},
    {0xfffffbe0, 0xd65f0be0, Form::refused, Flow::ret, Refusal::position, "retaasppc, retabsppc, register"},
    {0xffffffff, 0xd69f03e0, Form::refused, Flow::ret, Refusal::privileged, "eret"},
    {0xfffffbff, 0xd69f0bff, Form::refused, Flow::ret, Refusal::privileged, "eretaa, eretab"},
    {0xffffffff, 0xd6bf03e0, Form::refused, Flow::ret, Refusal::privileged, "drps"},
    {0xffe0001f, 0xd4000001, Form::system_call, Flow::syscall, Refusal::none, "svc"},
    {0xffe0001f, 0xd4000002, Form::refused, Flow::next, Refusal::privileged, "hvc"},
    {0xffe0001f, 0xd4000003, Form::refused, Flow::next, Refusal::privileged, "smc"},
    {0xffe0001f, 0xd4200000, Form::refused, Flow::next, Refusal::breakpoint, "brk"},
    {0xffe0001f, 0xd4400000, Form::refused, Flow::next, Refusal::privileged, "hlt"},
    {0xffe0001c, 0xd4a00000, Form::refused, Flow::next, Refusal::privileged, "dcps1, dcps2, dcps3"},
    {0xffffffff, 0xd503201f, Form::nop, Flow::next, Refusal::none, "nop"},
    {0xffffff3f, 0xd503241f, Form::landing_pad, Flow::next, Refusal::none, "bti"},
    {0xffffffff, 0xd50324ff, Form::prefix, Flow::next, Refusal::sequence, "pacm"},
    {0xfffff01f, 0xd503201f, Form::plain, Flow::next, Refusal::none, "hints: paciasp, autiasp, yield, ..."},
    {0xfffff0ff, 0xd503305f, Form::exclusive_clear, Flow::next, Refusal::none, "clrex"},
    {0xff800000, 0xd5000000, Form::plain, Flow::next, Refusal::none, "mrs, msr, sys, barriers, ..."},
    {0x1c000000, 0x14000000, Form::refused, Flow::next, Refusal::undecodable, "unallocated"},

    // Loads and stores. The memory copy instructions come in threes that follow each other, and the kernel moves the pc
    // from one to another when a thread changes to another kind of processor (arch/arm64/kernel/traps.c, do_el0_mops).
    {0xff000000, 0x18000000, Form::load_literal, Flow::next, Refusal::none, "ldr w, literal"},
    {0xff000000, 0x58000000, Form::load_literal, Flow::next, Refusal::none, "ldr x, literal"},
    {0xff000000, 0x98000000, Form::load_signed_literal, Flow::next, Refusal::none, "ldrsw, literal"},
    {0xff000000, 0xd8000000, Form::prefetch_literal, Flow::next, Refusal::none, "prfm, literal"},
    {0xff000000, 0xdc000000, Form::refused, Flow::next, Refusal::undecodable, "unallocated"},
    {0x3f000000, 0x1c000000, Form::load_vector_literal, Flow::next, Refusal::none, "ldr s, d, q, literal"},
    {0x3fe00000, 0x08400000, Form::exclusive_load, Flow::next, Refusal::exclusive, "ldxr, ldaxr"},
    {0x3fe00000, 0x08000000, Form::exclusive_store, Flow::next, Refusal::exclusive, "stxr, stlxr"},
    {0xbfe00000, 0x88600000, Form::exclusive_load, Flow::next, Refusal::exclusive, "ldxp, ldaxp"},
    {0xbfe00000, 0x88200000, Form::exclusive_store, Flow::next, Refusal::exclusive, "stxp, stlxp"},
    {0xbfe00000, 0x89400000, Form::exclusive_load, Flow::next, Refusal::exclusive, "ldtxr, ldatxr"},
    {0xbfe00000, 0x89000000, Form::exclusive_store, Flow::next, Refusal::exclusive, "sttxr, stltxr"},
    {0x3b200c00, 0x19000400, Form::refused, Flow::next, Refusal::sequence, "cpyp, cpym, cpye, setp, setm, sete, ..."},

    // Data processing, register: the signatures that are made with the instruction's own address (FEAT_PAuth_LR).
    {0xffff8000, 0xdac18000, Form::refused, Flow::next, Refusal::position, "paciasppc, pacibsppc, ..."},

    {0x00000000, 0x00000000, Form::plain, Flow::next, Refusal::none, "everything else"},
};

// The first row that can match a word, by the word's highest byte: walks through whole files ask for every word.
using Starts = std::array<std::uint8_t, 256>;
constexpr Starts first_rows() {
  Starts starts{};
  for (unsigned top = 0; top < starts.size(); ++top) {
    std::uint8_t row = 0;
    while (((top << 24 ^ kForms[row].value) & kForms[row].mask & 0xff000000) != 0) ++row;
    starts[top] = row;
  }
  return starts;
}
constexpr Starts kFirstRow = first_rows();

}  // namespace

std::span<const FormRow> forms() { return kForms; }

const FormRow& form_of(std::uint32_t word) {
  const auto row = std::find_if(kForms + kFirstRow[word >> 24], std::end(kForms),
                                [word](const FormRow& f) { return (word & f.mask) == f.value; });
  PROBED_CHECK(row != std::end(kForms), "the last form matches every word");
  return *row;
}

}  // namespace probed::arch::aarch64
