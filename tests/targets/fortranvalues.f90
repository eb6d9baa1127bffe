! fortranvalues: subroutines with arguments of every common kind. On command, one a line, it calls them and prints what
! their values were, as JSON:
!   call N   one call of take()
!   quit
! Built with several optimisation levels (meson.build): the values don't depend on them, their places do.
module values
  implicit none
  type point
    integer :: x
    real(8) :: y
  end type
contains
  ! What is only known to the running program isn't shown yet: hidden is described in memory, open has no end.
  subroutine take(number, whole, flag, three, from_minus_two, grid, cube, names, title, where_at, hidden, open)
    integer, intent(in) :: number
    real(8), intent(in) :: whole
    logical, intent(in) :: flag
    integer, intent(in) :: three(3), from_minus_two(-2:1), grid(2, 3), cube(2, 2, 2)
    character(len=4), intent(in) :: names(2)
    character(len=6), intent(in) :: title
    type(point), intent(in) :: where_at
    integer, intent(in) :: hidden(:), open(*)
    write (*, '(a)', advance='no') '{'
    call put('number', [number])
    call put('whole_quarters', [nint(whole * 4)])
    call put('flag', [merge(1, 0, flag)])
    call put_list('three', three)
    call put_list('from_minus_two', from_minus_two)
    write (*, '(a,3("[",i0,",",i0,"]",:,","))', advance='no') '"grid":[', grid
    write (*, '(a)', advance='no') '],'
    call put('third', three(3:3))
    call put('first', from_minus_two(-2:-2))
    call put('corner', grid(1, 3:3))
    call put('deep', [cube(2, 1, 2)])
    write (*, '(a)', advance='no') '"names":["' // names(1) // '","' // names(2) // '"],"title":"' // title // '",'
    call put('second', open(2:2))
    call put('x', [where_at%x])
    write (*, '(a,i0,a)') '"y_quarters":', nint(where_at%y * 4), '}'
    flush (6)
    if (size(hidden) > 1000) stop 3
  end subroutine

  subroutine put(name, value)
    character(len=*), intent(in) :: name
    integer, intent(in) :: value(1)
    write (*, '(a,i0,a)', advance='no') '"' // name // '":', value(1), ','
  end subroutine

  subroutine put_list(name, list)
    character(len=*), intent(in) :: name
    integer, intent(in) :: list(:)
    write (*, '(a,*(i0,:,","))', advance='no') '"' // name // '":[', list
    write (*, '(a)', advance='no') '],'
  end subroutine
end module

program fortranvalues
  use values
  implicit none
  integer :: n, i, status
  integer :: table(40)
  character(len=32) :: line, word
  character(len=4) :: names(2)
  write (*, '("ready ",i0," fortranvalues")') getpid()
  flush (6)
  do
    read (*, '(a)', iostat=status) line
    if (status /= 0) exit
    if (line == 'quit') exit
    read (line, *) word, n
    table = [(n * 100 + i, i = 1, 40)]
    write (names(1), '("n",i3.3)') n
    names(2) = 'last'
    call take(n, n + 0.25d0, mod(n, 2) == 1, table(1:3), table(4:7), reshape(table(8:13), [2, 3]), &
              reshape(table(14:21), [2, 2, 2]), names, 'title ', point(n - 7, n * 1.5d0), table(1:40:3), table)
  end do
  write (*, '(a)') 'result ok'
end program
