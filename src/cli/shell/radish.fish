# fish completion for radish: shows what `radish completion --words` answers.
#     radish completion fish | source
function __radish_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l kind ''
    set -l found 0
    for line in ($words[1] completion --words -- $words[2..-1] 2>/dev/null)
        if string match -q ':*' -- $line
            set kind $line
        else
            set found 1
            echo $line
        end
    end
    if test $found = 0
        switch $kind
            case :files
                __fish_complete_path (commandline -ct)
            case :folders
                __fish_complete_directories (commandline -ct)
        end
    end
end
complete -c radish -f -a '(__radish_complete)'
