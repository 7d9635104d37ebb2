process FACTORFLOW_FIT {
    tag "$meta.id"
    label 'process_medium'

    conda "${moduleDir}/environment.yml"
    container "${ params.factorflow_container ?: 'factorflow:latest' }"

    input:
    tuple val(meta), path(sources)

    output:
    tuple val(meta), path("${prefix}.data.zarr"), emit: dataset
    tuple val(meta), path("${prefix}.zarr")     , emit: posterior
    tuple val(meta), path("${prefix}/*.csv")    , emit: tables
    path "versions.yml"                         , emit: versions

    when:
    task.ext.when == null || task.ext.when

    script:
    def args = task.ext.args ?: ''
    def args2 = task.ext.args2 ?: ''
    prefix = task.ext.prefix ?: "${meta.id}"
    def files = sources instanceof List ? sources : [sources]
    def views = files.size() > 1 ? files.collect { file -> "${file.baseName}=${file}" }.join(' ') : "${files[0]}"
    """
    factorflow ingest ${views} ${args} --out ${prefix}.data.zarr
    factorflow fit ${prefix}.data.zarr ${args2} --executor dask --workers ${task.cpus} --out ${prefix}.zarr
    factorflow export ${prefix}.zarr --format csv --out ${prefix}

    cat <<-END_VERSIONS > versions.yml
    "${task.process}":
        factorflow: \$(factorflow --version | sed 's/.* //')
    END_VERSIONS
    """

    stub:
    prefix = task.ext.prefix ?: "${meta.id}"
    """
    mkdir ${prefix}.data.zarr ${prefix}.zarr ${prefix}
    touch ${prefix}/scores.csv

    cat <<-END_VERSIONS > versions.yml
    "${task.process}":
        factorflow: \$(factorflow --version | sed 's/.* //')
    END_VERSIONS
    """
}
