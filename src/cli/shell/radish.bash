# bash completion for radish: shows what `radish completion --words` answers.
#     source <(radish completion bash)
_radish()
{
    local rest=$COMP_LINE word line kind='' last cut
    local -a words=()
    local -i i

    # readline parts words at = and :, which radish does not: what stands without a blank between belongs together.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i > 1)) && [[ $rest != [[:space:]]* ]]; then
            words[-1]+=$word
        elif ((i > 0)); then
            words+=("$word")
        fi
        rest=${rest#"${rest%%[![:space:]]*}"}
        rest=${rest#"$word"}
    done
    last=${words[-1]}
    cut=${last%"${last##*[=:]}"}
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :*) kind=$line ;;
            *) line=${line%%$'\t'*}
               COMPREPLY+=("${line#"$cut"}") ;;
        esac
    done < <("${COMP_WORDS[0]}" completion --words -- "${words[@]}" 2>/dev/null)
    if ((${#COMPREPLY[@]} == 0)); then
        case $kind in
            :files) compopt -o default ;;
            :folders) compopt -o dirnames ;;
        esac
    fi
}
complete -F _radish radish
