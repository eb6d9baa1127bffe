#!/usr/bin/python3
"""Asks the running kernel what it thinks of probe definitions, and writes kernel_verdicts.inc.

Run as root, in a mount namespace of its own:
    unshare -m ./kernel_oracle.py > $(uname -m)/kernel_verdicts.inc
Only events of the groups used here are defined, one at a time and never enabled; each is removed again at once.
A row is {definition, column}: the 0-based column of error_log's caret, or kAccepted.
"""
import os
import re
import subprocess
import tempfile

# What stands for %di and %si; what is and isn't a register.
FIRST, SECOND, REGISTERS = {
    'x86_64': ('%di', '%si', ['%ip:u8', '%DI', '%edi', '%flags', '%orig_ax', '%ax', '%r8', '%ss']),
    'aarch64': ('%x0', '%x1', ['%pc:u8', '%X0', '%w0', '%pstate', '%orig_x0', '%x30', '%x31', '%sp', '%lr', '%xzr']),
}[os.uname().machine]
HEAD = 'p:pbx/e /bin/true:0x1000'
WHOLE = [
    HEAD, 'p:pbx.e2 /bin/true:0x1000', 'p:pbx/ /bin/true:0x1000', 'p:/e /bin/true:0x1000', 'p: /bin/true:0x1000',
    'p:1a/e /bin/true:0x1000', 'p:a-b/e /bin/true:0x1000', 'p:pbx/1e /bin/true:0x1000', 'p:pbx/e.f /bin/true:0x1000',
    'p:pbx/e/f /bin/true:0x1000', 'p:pbx/' + 'n' * 63 + ' /bin/true:0x1000', 'p:pbx/' + 'n' * 64 + ' /bin/true:0x1000',
    'p:' + 'g' * 63 + '/e /bin/true:0x1000', 'p:' + 'g' * 64 + '/e /bin/true:0x1000', 'p:a.b/c /bin/true:0x1000',
    'p:pbx/a-b /bin/true:0x1000', 'p:pbx/a.b /bin/true:0x1000', 'p:pbx.a.b /bin/true:0x1000', 'p:_/_ /bin/true:0x1000',
    'p /bin/true:0x1000', 'r /bin/true:0x1000', 'r3:pbx/e /bin/true:0x1000',
    'p:pbx/e /bin/true:0xzz', 'p:pbx/e /bin/true:4096', 'p:pbx/e /bin/true:010', 'p:pbx/e /bin/true:08',
    'p:pbx/e /bin/true:0x1000%return', 'p:pbx/e /bin/true:0x1000%ret', 'p:pbx/e /bin/true:0x1000%return%return',
    'p:pbx/e /bin/true:0x1000(', 'p:pbx/e /bin/true:0x1000(0x10', 'p:pbx/e /bin/true:0x1000(x)',
    'p:pbx/e /bin/true:0x1000()', 'p:pbx/e /bin/true:0x1000(0x10)x', 'p:pbx/e /bin/true:0x1000(0x10)%return',
    'p:pbx/e /bin/true:0x1000(0x10)', 'p:pbx/e /bin/true:0x1000(16)', 'p:pbx/e /bin/true:0x1000(020)',
    'p:pbx/e /bin/true:0x1000(+16)', 'p:pbx/e /bin/true:0x1000(-16)', 'p:pbx/e /bin/true:0x1000(0)',
    'p:pbx/e /bin/true:0x1000(0x)', 'p:pbx/e /bin/true:0x1000(0x10) %di', 'p:pbx/e /bin/true:0x1000(0x10) %nope',
    'p:pbx/e /bin/true:0x1000)', 'p:pbx/e /bin/true:0x1000(0x10))', 'p:pbx/e /bin/true:0x1000((0x10)',
    'p:pbx/e /bin/true:0xzz(0x10)', 'p:pbx/e /bin/true:(0x10)', 'p:pbx/e /bin/true:0x1000%return(0x10)',
    'p:pbx/e /bin/true:0x1000%return(x)', 'r:pbx/e /bin/true:0x1000(0x10) $retval', 'p:pbx/e /bin/true:0x1000 (0x10)',
    'p:1 /bin/true:0x1000 %nope', 'p:1 /bin/true:0xz %nope', 'p:pbx/ /bin/true:0x1000 %nope',
    'r:pbx/e /bin/true:0x1000 $retval', 'r:pbx/e /bin/true:0x1000 $retval:string',
    'r:pbx/e /bin/true:0x1000 +0($retval):string', 'r:pbx/e /bin/true:0x1000 $retval $retval',
    'r:pbx/e /bin/true:0x1000 $arg1', 'r:pbx/e /bin/true:0x1000 $arg1x', 'r:pbx/e /bin/true:0x1000 $args',
    'r:pbx/e /bin/true:0x1000 $arg*', 'r:pbx/e /bin/true:0x1000 $arg', 'r:pbx/e /bin/true:0x1000 $arg0',
    'r:pbx/e /bin/true:0x1000 $retval:x', 'p:pbx/e /bin/true:0x1000%return $retval',
]


def nest(depth, leaf='%di', prefix='+0('):
    return prefix * depth + leaf + ')' * depth


ARGS = [
    '%di', '%nope', '%', *REGISTERS, '%di\t%si',
    '$stack', '$stack0', '$stack99999', '$stackx', '$stack1x', '$stack0x1', '$stack+1', '$stack010', '$stack 0',
    '$retval', '$comm', '$COMM', '$comm:string', '$comm:u8', '$comm:string[2]', '$comm:ustring', '$foo', '$',
    '@0x10', '@10', '@010', '@08', '@0x', '@1x', '@0x1000+8', '@+0x10', '@+', '@+0x', '@+1x', '@++8', '@+-8', '@-0x10',
    '@', '@0x1000:string', '@0x1000:u8[3]', '@+0x10:u8[2]',
    '+0(%di)', '-8(%di)', '+u8(%di)', '-u8(%di)', '++8(%di)', '+-8(%di)', '-+8(%di)', '-0x8(%di)', '+u-8(%di)',
    '+010(%di)', '+08(%di)', '+0x(%di)', '+(%di)', '+x(%di)', '+0%di', '+0(%di', '+0(%nope)', '+8(+0x10(%nope))',
    '-8(%nope)', '+u8(%nope)', '-u8(%nope)', '+u-8(%nope)', '+-8(%nope)', '++8(%nope)', '+0(+u8(%nope))',
    '+u0(+u8(%nope))', '+0()', '+0(%di))', '+0(%d(i)', '+0 (%di)', '+', '-', '+u', '+(', '+)', '-(%di)', '+u(%di)',
    '+0(+8(%di)', '+0($comm)', '+0(\\"x")', '+8(+0($comm))', '+2147483648(%di)', '-2147483649(%di)',
    '+9223372036854775807(%di)', '+9223372036854775808(%di)', '-9223372036854775808(%di)',
    nest(12), nest(14), nest(14, '%nope'), nest(13, '%nope', '-8('),
    '\\1', '\\-1', '\\+1', '\\++1', '\\-+1', '\\0x10', '\\010', '\\08', '\\x', '\\', '\\18446744073709551615',
    '\\18446744073709551616', '\\-9223372036854775808', '\\-9223372036854775809', '\\1:u8', '\\1:u8[2]',
    '\\0x1000:string', '\\"abc"', '\\"abc', '\\"', '\\""', '\\"abc"x', '\\"abc":u8', '\\"abc":string', '\\"a b"',
    'a=\\"x=y"', 'x', '_x', 'foo->bar', '5', '"x"',
    'a=%di', 'a=', '=%di', '=', '1a=%di', 'a-b=%di', 'n' * 32 + '=%di', 'n' * 33 + '=%di', 'a=%di a=%si', '%di arg1=%si',
    'arg2=%di %si', '__probe_ip=%di', 'common_pid=%di', '__probe_func=%di', 'a=%nope', 'a=+8(%nope)', 'a=b=%di', 'a==%di',
    'a=b', 'a:', 'a=%di:', '%di:u8=x',
    # Not symbol: uprobes have none, it names the kernel's own functions.
    '%di:u8', '%di:u9', '%di:', '%di:x64', '%di:char', '%di:symstr', '%di:string', '%di:ustring', '%di:string[2]',
    '$stack0:string', '$stack:string', '+0(%di):string', '+u0(%di):string', '+0(%di):ustring', '+0(%di):string[3]',
    '%di::u8', '%di:u8:u8', '%nope:u9',
    '%di:b1@0/8', '+0(%di):b1@0/8', '%di:b0@0/8', '%di:b8@1/8', '%di:b8@0/8', '%di:b1@7/8', '%di:b64@0/64', '%di:b1@0/7',
    '%di:b1@0', '%di:b1', '%di:b@0/8', '%di:bx', '%di:b', '%di:b/8', '%di:b1@/8', '%di:b1@0x/8', '%di:b0x4@010/32',
    '%di:b4@0/32x', '%di:b1@0/0x8', '%di:b1@0/+8',
    '+0(%di):u8[3]', '+0(%di):u8[0]', '+0(%di):u8[64]', '+0(%di):u8[65]', '+0(%di):u8[', '+0(%di):u8[]', '+0(%di):u8[3',
    '+0(%di):u8[3]x', '+0(%di):u8[3]]', '+0(%di):u8[x]', '+0(%di):u8[0x3]', '+0(%di):u8[010]', '+0(%di):u8[+3]',
    '+0(%di):u8[3][4]', '%di:u8[3]', '%di:u8[[3]', '%di:u8]', '%di:[3]', '+0(%di):b3@2/8[4]', '+0(%di):char[4]',
    '$stack0:u8[2]', '%nope:u8[70]', '+0(%di):b9@0/8[70]',
    ' '.join(['%di'] * 128), ' '.join(['%di'] * 129), ' '.join(['%nope'] * 129),
]


# What kernels before 6.18 say otherwise.
NEWER = {'%di:char', '+0(%di):char[4]', '%di:symstr', ' '.join(['%di'] * 129)}


class Kernel:
    def __init__(self):
        self.root = tempfile.mkdtemp()
        subprocess.run(['mount', '-t', 'tracefs', 'none', self.root], check=True)

    def close(self):
        subprocess.run(['umount', self.root], check=True)
        os.rmdir(self.root)

    def define(self, text):
        fd = os.open(self.root + '/uprobe_events', os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, (text + '\n').encode())
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def column(self):
        with open(self.root + '/error_log') as log:
            carets = [line for line in log if line.strip() == '^']
        return carets[-1].index('^') - len('  Command: ') if carets else None

    def verdict(self, text):
        before = self.events()
        open(self.root + '/error_log', 'w').close()
        if not self.define(text):
            return self.column()
        for name in self.events() - before:
            self.define('-:' + name)
        return 'kAccepted'

    def events(self):
        with open(self.root + '/uprobe_events') as events:
            return {line.split()[0].split(':')[1] for line in events}


def main():
    kernel = Kernel()
    old = [int(part) for part in re.findall(r'\d+', os.uname().release)[:2]] < [6, 18]
    print('// Written by kernel_oracle.py on Linux ' + os.uname().release + '; do not edit.')
    for row in WHOLE + [HEAD + ' ' + arg for arg in ARGS if not (old and arg in NEWER)]:
        text = row.replace('%di', FIRST).replace('%si', SECOND)
        verdict = kernel.verdict(text)
        if verdict is None:
            print('// refused without a column: ' + text)
        else:
            print('{R"~(%s)~", %s},' % (text, verdict))
    kernel.close()


if __name__ == '__main__':
    main()
